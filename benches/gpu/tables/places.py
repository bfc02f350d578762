"""Where contents come from and what is shared: caches, disk, sleep, instances, framework images."""

import statistics

from tables.common import spread, verdict


def caches(results):
    """One image from wherever its contents can be."""
    lines = [
        "| program | contents in | restore to running, s | to first answer, s | beyond a warm answer, ms | GPU memory, GB/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in results["cache"].items():
        for way, one in row.get("ways", {}).items():
            restores = one["restores"]
            columns = [spread([each[key] for each in restores], 3) for key in ("running_s", "first_answer_s")]
            beyond = spread([1e3 * (each["first_answer_s"] - each["warm_answer_s"]) for each in restores], 0)
            speed = spread([each["gb_per_s"] for each in restores], 1)
            lines.append(f"| {name} | {way} | {' | '.join(columns)} | {beyond} | {speed} |")
    return lines


def shared(results):
    """What one more instance takes of the GPU, and what a write to something shared costs."""
    lines = [
        "| program | contents in | memory of a further instance, MB | its own buffers, MB | beyond those, MB | shared, MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in results["cache"].items():
        for way, one in row.get("ways", {}).items():
            if "further" in one:
                more = one["further"]
                sizes = [more["gpu_bytes"], more["own_bytes"], more["gpu_bytes"] - more["own_bytes"], more["shared_bytes"]]
                lines.append(f"| {name} | {way} | {' | '.join(f'{size / 1e6:.0f}' for size in sizes)} |")
    if "write" in results["cache"]:
        mended = spread([1e3 * each for each in results["cache"]["write"]["mended_s"]], 0)
        lines += ["", f"A kernel writes to a shared buffer of 240 MB: the program goes on, on memory of its own, after {mended} ms."]
    return lines


def disk(results):
    """Restores of an image that the disk alone has, beside what the same disk gives."""
    lines = ["| program | restore, GB/s | the disk, GB/s, best of its ways | ratio | to reach | |", "| --- | --- | --- | --- | --- | --- |"]
    for name, row in results["disk"].items():
        way, best = max(row["disk_gb_per_s"].items(), key=lambda one: statistics.median(one[1]))
        rates = [one["disk_gb_per_s"] for one in row["restores"]]
        columns = [spread(rates, 2), f"{spread(best, 2)}, {way}", f"{row['ratio']:.2f}"]
        lines.append(f"| {name} | {' | '.join(columns)} | 0.90 | {verdict(row['ratio'] >= 0.9)} |")
    return lines


def sleeps(results):
    """A sleeping program from the request that wakes it to its answer."""
    lines = [
        "| program | level | GPU memory given back, MB | woken answer, ms | beyond a warm one, ms | to reach | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    limits = {("gpt2-large", "gpu"): 100, ("gpt2-large", "host"): 200}
    for name, row in results["sleep"].items():
        for level, times in row["levels"].items():
            woken = [1e3 * one["woken_answer_s"] for one in times]
            given = statistics.median(one["awake_gpu_bytes"] - one["asleep_gpu_bytes"] for one in times) / 1e6
            beyond = statistics.median(woken) - 1e3 * row["warm_answer_s"]
            limit = limits.get((name, level))
            reach = f"{limit} ms | {verdict(statistics.median(woken) <= limit)}" if limit else " | "
            lines.append(f"| {name} | `{level}` | {given:.0f} | {spread(woken, 0)} | {beyond:.0f} | {reach} |")
    return lines


def scale(results):
    lines = [
        "| program | instances | last running, s | last answered, s | resident each, MB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in results.get("scale", {}).items():
        for count, one in row.get("counts", {}).items():
            times = [spread(one[key], 3) for key in ("running_s", "answered_s")]
            lines.append(f"| {name} | {count} | {' | '.join(times)} | {statistics.median(one['resident_bytes']) / 1e6:.0f} |")
    return lines


def framework(results):
    """Apps from a framework image beside the same apps started by themselves."""
    lines = [
        "| program | way | start to ready, s | image, MB | its own, MB | own, CPU pages, MB | own above weights, MB | restore to running, ms | to first answer, ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in results["framework"].items():
        if "image" not in row:
            lines.append(f"| {name} | **no**: {row['error'].splitlines()[0][:200]} | | | | | | | |")
            continue
        for way, label in (("framework", "from the framework image"), ("alone", "by itself")):
            image, times = row["image"][way], row["restores"][way]
            sizes = [image["stored"], image["own"], image["stored_by_kind"].get("cpu-pages", 0), image["own"] - row["weights_bytes"]]
            sizes = " | ".join(f"{size / 1e6:.0f}" for size in sizes)
            columns = " | ".join(spread([1e3 * one[key] for one in times], 0) for key in ("running_s", "first_answer_s"))
            lines.append(f"| {name} | {label} | {row['start_s'][way]:.2f} | {sizes} | {columns} |")
    return lines
