"""Driver mode, from `h200-driver.json`."""

import statistics

from tables.common import spread, verdict


def measured(results):
    """What was measured in both ways."""
    return [(name, row) for name, row in results["driver"].items() if row["ok"]]


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
        ratio = other["checkpoint"]["total_s"] / (row["checkpoints"][-1]["report"]["total_us"] / 1e6)
        lines.append(f"| {name}, checkpoint with `--stop` against driver + CRIU | {ratio:.1f} times as fast | 2 | {verdict(ratio >= 2)} |")
    return lines


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
        *going, ending = [one["report"]["total_us"] / 1e6 for one in row["checkpoints"]]
        columns = [spread([one[key] for one in row["restores"]], 3) for key in ("running_s", "first_answer_s")]
        warm = spread([1e3 * one["warm_answer_s"] for one in row["restores"]], 1)
        goes_on = ", ".join(f"{total:.3f}" for total in going)
        stored = f"{row['sizes']['stored'] / 1e6:.0f}"
        if "gb_per_gpu" in row:
            name = f"{name}, {row['gb_per_gpu']:.0f} GB"
        lines.append(f"| {name} | Rekindle | {goes_on} | {ending:.3f} | {' | '.join(columns)} | {warm} | {ratio:.2f} | {stored} |")
        times = [[one[key] for one in other["restores"]] for key in ("running_s", "first_answer_s")]
        columns = [spread(each, 3) if each else "" for each in times]
        warm = spread([1e3 * each for each in native], 1)
        columns = [f"{other['checkpoint']['total_s']:.3f}", *columns, warm, "1", f"{other['image_bytes'] / 1e6:.0f}"]
        lines.append(f"| {name} | driver + CRIU | | {' | '.join(columns)} |")
    return lines


def split(results):
    """What driver, CRIU and the rest take of the last checkpoint and of the middle restore; after the paper's table 2 and figures 5 and 6."""
    lines = [
        "| program | way | lock, s | driver checkpoint, s | CPU half, s | rest, s | CPU half back, s | driver restore and unlock, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in measured(results):
        report, middle = row["checkpoints"][-1]["report"], sorted(row["restores"], key=lambda one: one["first_answer_s"])[len(row["restores"]) // 2]
        took = {phase["name"]: phase["duration_us"] / 1e6 for phase in report["phases"]}
        back = {phase["name"]: phase["duration_us"] / 1e6 for phase in middle["report"]["phases"]}
        lock, driver, cpu = took["lock"], took["checkpoint"], took["freeze"] + took["dump"]
        attached = back["restore"] + back["unlock"]
        columns = [lock, driver, cpu, report["total_us"] / 1e6 - lock - driver - cpu, middle["running_s"] - attached, attached]
        lines.append(f"| {name} | Rekindle | {' | '.join(f'{value:.3f}' for value in columns)} |")
        taken = row["criu"]["checkpoint"]
        columns = [f"{taken[key]:.3f}" for key in ("driver_lock_s", "driver_checkpoint_s", "criu_dump_s")]
        back = [[f"{one['criu_restore_s']:.3f}", f"{one['driver_restore_s'] + one['driver_unlock_s']:.3f}"] for one in row["criu"]["restores"]]
        columns += ["", *(back or [["", ""]])[-1]]
        lines.append(f"| {name} | driver + CRIU | {' | '.join(columns)} |")
    return lines


def phases(results):
    """Where the time of the last checkpoint and of the middle restore of the largest program went."""
    row = results["driver"]["gpt2-large"]
    middle = sorted(row["restores"], key=lambda one: one["first_answer_s"])[len(row["restores"]) // 2]
    lines = ["| of | phase | begins, ms | takes, ms |", "| --- | --- | --- | --- |"]
    for what, one in (("checkpoint", row["checkpoints"][-1]), ("restore", middle)):
        for phase in one["report"]["phases"]:
            lines.append(f"| {what} | {phase['name']} | {phase['start_us'] / 1e3:.0f} | {phase['duration_us'] / 1e3:.0f} |")
    return lines


def step(results):
    """The driver's own step with and without what makes memory ready for it."""
    lines = ["| the driver's step, 5.5 GB | takes, s | its restore, s |", "| --- | --- | --- |"]
    step = results["step"]
    for way, times in step.items():
        if isinstance(times, list):
            back = step["restore after it"].get(way)
            lines.append(f"| {way} | {spread(times, 2)} | {spread(back, 2) if back else ''} |")
    return lines


def two_gpus(results):
    """How far programs on two GPUs got, and what stopped them."""
    lines = ["| program on two GPUs | by | got as far as | then |", "| --- | --- | --- | --- |"]
    for part in ("two-gpus", "nccl"):
        for name, row in results.get(part, {}).items():
            if row.get("error", "").startswith("not run"):
                continue
            then = row.get("then") or row.get("error") or ""
            said = " ".join(then.split("exit 1: rekindle: ")[-1].split(" (its log:")[0].split()).replace("|", "\\|")
            reached = row.get("reached") or ("all" if row["ok"] else "checkpointed" if "rekindle restore" in then else "ran")
            lines.append(f"| {name} | {row.get('by', 'Rekindle')} | {reached} | {said[-300:]} |")
    return lines
