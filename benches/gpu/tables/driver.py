"""Driver mode, from `h200-driver.json`."""

import statistics

from tables.common import spread, verdict


def measured(results):
    """What was measured in both ways, by names that say how large a program is where that can be chosen."""
    return [(sized(name, row), row) for name, row in results["driver"].items() if row["ok"]]


def sized(name, row):
    return f"{name.split(' of ')[0]}, {row['gb_per_gpu']:.0f} GB" if "gb_per_gpu" in row else name


def figures(results):
    rows = results["driver"]
    lines = ["| what | measured | to reach | |", "| --- | --- | --- | --- |"]
    first = rows["gpt2-large"]["first_answer_s"]
    lines.append(f"| gpt2-large, restore to first answer | {first:.2f} s | ≤ 1.5 s | {verdict(first <= 1.5)} |")
    for name, row in measured(results):
        other = row["criu"]
        if other["first_answer_s"]:
            ratio = other["first_answer_s"] / row["first_answer_s"]
            lines.append(f"| {name}, restore against driver + CRIU | {ratio:.1f} times as fast | faster | {verdict(ratio > 1)} |")
        ratios = [theirs / ours for ours, theirs in endings(row)]
        ratio = statistics.median(ratios)
        lines.append(f"| {name}, checkpoint with `--stop` against driver + CRIU | {spread(ratios, 2)} times as fast | 2 | {verdict(ratio >= 2)} |")
    return lines


def by_pid(results):
    """For those who have read nothing else."""
    row = results["driver"]["gpt2-large"]
    ours, theirs = (statistics.median(each) for each in zip(*endings(row), strict=True))
    return [
        "A program that was started without Rekindle and is taken by its pid ([driver mode](docs/driver-mode.md)): gpt2-large is"
        f" checkpointed in {ours:.2f} s and back at its first answer in {row['first_answer_s']:.2f} s; with NVIDIA's checkpoint and CRIU"
        f" by themselves that takes {theirs:.2f} and {row['criu']['first_answer_s']:.2f} s."
    ]


def endings(row):
    """Seconds of the checkpoints after which the program has ended: by Rekindle, and of the next program of its kind by driver + CRIU."""
    taken = [(row["checkpoints"][-1]["report"], row["criu"]["checkpoint"])]
    taken += [(one["rekindle"]["report"], one["criu"]) for one in row.get("others", [])]
    return [(report["total_us"] / 1e6, checkpoint["total_s"]) for report, checkpoint in taken]


def both_ways(results):
    """Rekindle's driver mode beside the driver's checkpoint with CRIU alone."""
    lines = [
        "| program | way | checkpoint, goes on, s | checkpoint, ends, s | restore to running, s | to first answer, s | warm answer, ms | over native | image, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in measured(results):
        other = row["criu"]
        native = [row["warm_answer_s"], other["warm_answer_s"]]
        ratio = statistics.median(one["warm_answer_s"] for one in row["restores"]) / statistics.median(native)
        going = [one["report"]["total_us"] / 1e6 for one in row["checkpoints"][:-1]]
        ending = [spread(each, 3) for each in zip(*endings(row), strict=True)]
        columns = [spread([one[key] for one in row["restores"]], 3) for key in ("running_s", "first_answer_s")]
        warm = spread([1e3 * one["warm_answer_s"] for one in row["restores"]], 1)
        goes_on = ", ".join(f"{total:.3f}" for total in going)
        stored = f"{row['sizes']['stored'] / 1e6:.0f}"
        lines.append(f"| {name} | Rekindle | {goes_on} | {ending[0]} | {' | '.join(columns)} | {warm} | {ratio:.2f} | {stored} |")
        times = [[one[key] for one in other["restores"]] for key in ("running_s", "first_answer_s")]
        columns = [spread(each, 3) if each else "" for each in times]
        warm = spread([1e3 * each for each in native], 1)
        columns = [ending[1], *columns, warm, "1", f"{other['image_bytes'] / 1e6:.0f}"]
        lines.append(f"| {name} | driver + CRIU | | {' | '.join(columns)} |")
    return lines


def middle(row):
    return sorted(row["restores"], key=lambda one: one["first_answer_s"])[len(row["restores"]) // 2]


def parts(row):
    """Seconds of the last checkpoint and of the middle restore (of driver + CRIU the last), of each way: (way, checkpoint, restore)."""
    report, restore = row["checkpoints"][-1]["report"], middle(row)
    took = {phase["name"]: phase["duration_us"] / 1e6 for phase in report["phases"]}
    back = {phase["name"]: phase["duration_us"] / 1e6 for phase in restore["report"]["phases"]}
    checkpoint = {"lock": took["lock"], "driver": took["checkpoint"], "CPU half": took["freeze"] + took["dump"]}
    checkpoint["rest"] = report["total_us"] / 1e6 - sum(checkpoint.values())
    attached = back["restore"] + back["unlock"]
    yield "Rekindle", checkpoint, {"CPU half": restore["running_s"] - attached, "driver": attached}
    other = row["criu"]
    taken = other["checkpoint"]
    checkpoint = {"lock": taken["driver_lock_s"], "driver": taken["driver_checkpoint_s"], "CPU half": taken["criu_dump_s"]}
    restore = {}
    if other["restores"]:
        last = other["restores"][-1]
        restore = {"CPU half": last["criu_restore_s"], "driver": last["driver_restore_s"] + last["driver_unlock_s"]}
    yield "driver + CRIU", checkpoint, restore


def split(results):
    """What driver, CRIU and the rest take; after the paper's table 2 and figures 5 and 6."""
    lines = [
        "| program | way | lock, s | driver checkpoint, s | CPU half, s | rest, s | CPU half back, s | driver restore and unlock, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in measured(results):
        for way, checkpoint, restore in parts(row):
            values = [checkpoint.get(key) for key in ("lock", "driver", "CPU half", "rest")]
            values += [restore.get(key) for key in ("CPU half", "driver")]
            lines.append(f"| {name} | {way} | {' | '.join('' if value is None else f'{value:.3f}' for value in values)} |")
    return lines


def phases(results):
    """Where the time of the last checkpoint and of the middle restore of the largest program went."""
    row = results["driver"]["gpt2-large"]
    lines = ["| of | phase | begins, ms | takes, ms |", "| --- | --- | --- | --- |"]
    for what, one in (("checkpoint", row["checkpoints"][-1]), ("restore", middle(row))):
        for phase in one["report"]["phases"]:
            lines.append(f"| {what} | {phase['name']} | {phase['start_us'] / 1e3:.0f} | {phase['duration_us'] / 1e3:.0f} |")
    return lines


def large_pages(results):
    """A checkpoint with and without the machine's switch for large pages, beside driver + CRIU in the same run."""
    lines = [
        "| gpt2-large | the driver's step, s | CPU half, s | the program's end, s | in all, s | against driver + CRIU | restore to first answer, s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    labels = {"off": "switch left alone", "usual": "switch set for the step"}
    for way, row in results["large-pages"].items():
        report = row["checkpoints"][-1]["report"]
        took = {phase["name"]: phase["duration_us"] / 1e6 for phase in report["phases"]}
        other, both = row["criu"]["checkpoint"], endings(row)
        totals, others = ([pair[at] for pair in both] for at in (0, 1))
        shown = " | ".join(f"{value:.2f}" for value in (took["checkpoint"], took["freeze"] + took["dump"], took["stop"]))
        first = spread([one["first_answer_s"] for one in row["restores"]], 2)
        ratio = spread([theirs / ours for ours, theirs in both], 2)
        lines.append(f"| {labels[way]} | {shown} | {spread(totals, 2)} | {ratio} times as fast | {first} |")
        first = spread([one["first_answer_s"] for one in row["criu"]["restores"]], 2)
        shown = f"{other['driver_checkpoint_s']:.2f} | {other['criu_dump_s']:.2f} |"
        lines.append(f"| driver + CRIU, in that run | {shown} | {spread(others, 2)} | 1 | {first} |")
    return lines


def lock(results):
    row = results["lock"]["busy"]
    went = "went on to its answer" if row["went_on"] else "**did not go on**"
    return [
        f"A kernel that runs for {row['answer_s']:.0f} s, with `--gpu-wait {row['gpu_wait_s']}`: refused after"
        f" {row['refused_after_s']:.1f} s, and the program {went}."
    ]


def words(error):
    """What Rekindle or the driver said, without how it was asked."""
    said = error.split("exit 1: rekindle: ")[-1].split(" (its log:")[0]
    return " ".join(said.split()).replace("|", "\\|")[-420:]


def two_gpus(results):
    """Programs on two GPUs by Rekindle and by driver + CRIU: how long it took, and what stopped them."""
    lines = [
        "| program on two GPUs | way | got as far as | checkpoint, s | restore to running, s | to first answer, s | image, MB | then |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    number = lambda value, digits=2: "" if value is None else f"{value:.{digits}f}"

    def line(name, way, row, checkpoint, restore, size):
        times = [number(checkpoint), number(restore.get("running_s")), number(restore.get("first_answer_s"))]
        size = "" if size is None else f"{size / 1e6:.0f}"
        then = words(row.get("then") or row.get("error") or "")
        lines.append(f"| {name} | {way} | {row['reached']} | {' | '.join(times)} | {size} | {then} |")

    for name, row in results["two-gpus"].items():
        taken = row["checkpoints"][-1]["report"]["total_us"] / 1e6 if row.get("checkpoints") else None
        line(name, "Rekindle", row, taken, (row.get("restores") or [{}])[0], row.get("sizes", {}).get("stored"))
        other = row["criu"]
        restore = (other.get("restores") or [{}])[0]
        line(name, "driver + CRIU", other, other.get("checkpoint", {}).get("total_s"), restore, other.get("image_bytes"))
    for name, row in results["nccl"].items():
        line(name, row.get("by", "Rekindle"), row, row.get("checkpoint_s"), row, None)
    return lines


def peers(results):
    """Which memory with peer access the driver brings back where nothing stops."""
    lines = ["| memory | allocations | the driver's checkpoint, s | its restore, s | |", "| --- | --- | --- | --- | --- |"]
    for row in results["peers"]:
        steps = row["steps"]
        times = [f"{steps[name]['seconds']:.2f}" if name in steps else "" for name in ("Checkpoint", "Restore")]
        failed = [f"{name.lower()}: error {step['code']}" for name, step in steps.items() if step["code"]]
        end = "as it was" if row["ok"] else f"**{', '.join(failed) or row.get('memory') or row.get('error')}**"
        lines.append(f"| {row['kind']} | {row['count']} of {row['mb']} MB | {' | '.join(times)} | {end} |")
    return lines


def containers(results):
    """A real GPU in Podman's containers."""
    lines = [
        "| container | checkpoint, goes on, s | checkpoint, ends, s | restore to running, s | to first answer, s | image, MB | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in results["containers"].items():
        if not row.get("restores"):
            lines.append(f"| {name} | | | | | | **no**: {words(row.get('error') or row.get('skipped', ''))} |")
            continue
        times = [f"{one['seconds']:.2f}" for one in row["checkpoints"]]
        times += [
            spread([one[key] for one in row["restores"] if key in one], 2) if key in row["restores"][0] else ""
            for key in ("running_s", "first_answer_s")
        ]
        same = "the same, bit for bit" if row["ok"] else "**other answers**"
        lines.append(f"| {name} | {' | '.join(times)} | {row['sizes']['stored'] / 1e6:.0f} | {same} |")
    return lines
