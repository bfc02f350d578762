"""Speed and correctness of images, from `h200.json`."""

import statistics

from tables.common import spread, verdict


def figures(results):
    lines = ["| what | measured, median (range) | to reach | |", "| --- | --- | --- | --- |"]
    limits = {"gpt2-large": 1.03, "gpt2-train": 1.03, "resnet18": 1.10}
    for name, row in results["steady"].items():
        if not row["ok"]:
            lines.append(f"| {name}, sandbox over native | {row['error']} | ≤ {limits[name]:.2f} | **not measured** |")
            continue
        ratios = [sandboxed / alone for alone, sandboxed in zip(row["native_ms"], row["sandbox_ms"])]
        lines.append(f"| {name}, sandbox over native | {spread(ratios, 3)} | ≤ {limits[name]:.2f} | {verdict(row['ratio'] <= limits[name])} |")
    for name, row in results["steady"].items():
        if row["ok"]:
            extra, ring = row["extra_resident_bytes"] / 1e6, row["resident_bytes"]["ring"] / 1e6
            lines.append(
                f"| extra resident memory, {name} | {extra:.0f} MB, of which ring {ring:.0f} MB | ≤ 100 MB + ring | {verdict(extra <= 100 + ring)} |"
            )
    for name, row in results["images"].items():
        # Of the others the time for bytes is too short to tell a rate.
        for what in ("checkpoint", "restore") if name == "gpt2-large" else ():
            rates = [one["gb_per_s"] for one in row[f"{what}s"]]
            beside = ", beside the running program" if what == "restore" else ""
            lines.append(f"| GPU memory of {name}, {what}{beside}, GB/s | {spread(rates, 1)} | ≥ 40 | {verdict(statistics.median(rates) >= 40)} |")
        other = results.get("baseline", {}).get(name, {})
        if row["ok"] and other.get("ok"):
            ratio = other["first_answer_s"] / row["first_answer_s"]
            lines.append(f"| whole restore of {name} against driver + CRIU | {ratio:.1f} times as fast | faster | {verdict(ratio > 1)} |")
    return lines


def restores(results):
    lines = [
        "| program | way | checkpoint, s | restore to running, s | to first answer, s | warm answer, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in results["images"].items():
        totals = [one["report"]["total_us"] / 1e6 for one in row["checkpoints"]]
        columns = [spread([one[key] for one in row["restores"]], 3) for key in ("running_s", "first_answer_s")]
        lines.append(f"| {name} | Rekindle | {spread(totals, 3)} | {' | '.join(columns)} | {row['warm_answer_s']:.3f} |")
        other = results.get("baseline", {}).get(name, {})
        if other.get("ok"):
            columns = [spread([one[key] for one in other["restores"]], 3) for key in ("running_s", "first_answer_s")]
            lines.append(f"| {name} | driver + CRIU | {other['checkpoint']['total_s']:.3f} | {' | '.join(columns)} | {other['warm_answer_s']:.3f} |")
        start = results.get("cold", {}).get(name, {})
        if start.get("ok"):
            lines.append(f"| {name} | cold start | | | {spread(start['starts_s'], 3)} | |")
    return lines


RUNNING_S = {"hello": 0.060, "resnet18": 0.060, "resnet152": 0.060, "bert-base": 0.060, "opt-350m": 0.080, "gpt2-large": 0.080}


def goals(results):
    """Restores against what they are to reach."""
    lines = ["| what | measured, median (range) | to reach | |", "| --- | --- | --- | --- |"]

    def line(what, values, limit):
        lines.append(
            f"| {what} | {spread([1e3 * value for value in values], 0)} ms | {1e3 * limit:.0f} ms | {verdict(statistics.median(values) <= limit)} |"
        )

    rows = {name: row for name, row in results["images"].items() if row["ok"]}
    for name, row in rows.items():
        line(f"restore to running, {name}", [one["running_s"] for one in row["restores"]], RUNNING_S[name])
    for name, limit in (("resnet152", lambda warm: warm + 0.070), ("gpt2-large", lambda _: 0.180)):
        if name in rows:
            firsts = [one["first_answer_s"] for one in rows[name]["restores"]]
            line(f"restore to first answer, {name}", firsts, limit(rows[name]["warm_answer_s"]))
    others = {"cold": ("cold start", 50), "baseline": ("driver + CRIU", 18)}
    for part, (way, times) in others.items():
        other = results.get(part, {}).get("gpt2-large", {})
        if "gpt2-large" in rows and other.get("ok"):
            ratio = other["first_answer_s"] / rows["gpt2-large"]["first_answer_s"]
            lines.append(f"| gpt2-large to first answer, against {way} | {ratio:.1f} times as fast | {times} times | {verdict(ratio >= times)} |")
    for name, row in results.get("scale", {}).items():
        if row["ok"]:
            line(f"8 instances of {name} at once, last one running", row["counts"]["8"]["running_s"], 0.250)
    return lines


def phases(results):
    """Where the time of the middle restore went."""
    lines = ["| program | phase | begins, ms | takes, ms | GB |", "| --- | --- | --- | --- | --- |"]
    for name, row in results["images"].items():
        if name not in ("hello", "gpt2-large"):
            continue
        middle = sorted(row["restores"], key=lambda one: one["first_answer_s"])[len(row["restores"]) // 2]
        for phase in middle["report"]["phases"]:
            size = f"{phase['bytes'] / 1e9:.2f}" if phase["bytes"] else ""
            lines.append(f"| {name} | {phase['name']} | {phase['start_us'] / 1e3:.0f} | {phase['duration_us'] / 1e3:.0f} | {size} |")
    return lines


def checks(results):
    """What the checks of an image take, which are part of every checkpoint and restore."""
    lines = [
        "| program | CRIU's images, at a checkpoint, ms | at a restore, ms | some pages, beside CRIU's start, ms | restore to running, s | to first answer, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]

    def took(runs, name):
        phases = [phase for one in runs for phase in one["report"]["phases"] if phase["name"] == name]
        return spread([phase["duration_us"] / 1e3 for phase in phases], 1)

    for name, row in results["images"].items():
        columns = [took(row["checkpoints"], "check"), took(row["restores"], "check"), took(row["restores"], "check pages")]
        columns += [spread([one[key] for one in row["restores"]], 3) for key in ("running_s", "first_answer_s")]
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return lines


def orders(results):
    """One image in each order of loading."""
    names = ["none", "default", "profile", "worst"]
    lines = [
        "| program | order | restore to running, s | to first answer, s | GPU memory, GB/s | warm answer, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in results["order"].items():
        for order in names:
            restores = row["orders"][order]
            columns = [spread([one[key] for one in restores], 3) for key in ("running_s", "first_answer_s")]
            speed = spread([one["gb_per_s"] for one in restores], 1)
            lines.append(f"| {name} | `{order}` | {' | '.join(columns)} | {speed} | {row['warm_answer_s']:.3f} |")
    return lines


def correctness(results):
    lines = ["| program | same as uninterrupted | checkpoint, ms | restore, ms | image, MB |", "| --- | --- | --- | --- | --- |"]
    for name, row in results["correctness"].items():
        if "restore" in row:
            times = [f"{row[what]['total_us'] / 1e3:.0f}" for what in ("checkpoint", "restore")]
            same = "yes, bit for bit" if row["ok"] else f"**no**: steps {row['different']} differ"
            lines.append(f"| {name} | {same} | {' | '.join(times)} | {row['sizes']['stored'] / 1e6:.0f} |")
        else:
            lines.append(f"| {name} | **no**: {row['error'].splitlines()[0][:200]} | | | |")
    return lines


def summary(results):
    """What a reader of the README wants to know first."""
    lines = ["| on one NVIDIA H200 | |", "| --- | --- |"]
    row, other = results["images"]["gpt2-large"], results["baseline"]["gpt2-large"]
    checkpoint = statistics.median(one["report"]["total_us"] for one in row["checkpoints"]) / 1e3
    cold, small = results["cold"]["gpt2-large"]["first_answer_s"], results["images"]["resnet152"]["first_answer_s"]
    lines.append(
        f"| gpt2-large (3.1 GB of weights) brought back, to its first answer | {row['first_answer_s'] * 1e3:.0f} ms;"
        f" NVIDIA's checkpoint with CRIU: {other['first_answer_s'] * 1e3:.0f} ms; started anew: {cold:.0f} s |"
    )
    lines.append(f"| resnet152, the same | {small * 1e3:.0f} ms |")
    woken = {level: statistics.median(one["woken_answer_s"] for one in times) for level, times in results["sleep"]["gpt2-large"]["levels"].items()}
    lines.append(
        f"| gpt2-large asleep, to the answer that wakes it | {woken['gpu'] * 1e3:.0f} ms, its memory on the GPU; {woken['host'] * 1e3:.0f} ms, in the host's memory |"
    )
    lines.append(f"| gpt2-large, checkpoint | {checkpoint:.0f} ms; NVIDIA's with CRIU: {other['checkpoint']['total_s'] * 1e3:.0f} ms |")
    ratios = ", ".join(f"{name} {row['ratio']:.2f}" for name, row in results["steady"].items())
    lines.append(f"| time of a step in a sandbox over native | {ratios} |")
    same = sum(row["ok"] for row in results["correctness"].values())
    lines.append(f"| programs that go on bit for bit after checkpoint, kill, restore | {same} of {len(results['correctness'])} |")
    return lines
