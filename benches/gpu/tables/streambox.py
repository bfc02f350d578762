"""Workflows in several ways, from `benches/streambox/results.json`: a table for each run of the benchmark."""

import statistics

from tables.common import spread

WAYS = ("rekindle", "called", "processes", "mps", "streams")
LOADS = ("sporadic", "periodic", "bursty")
MB = 1 << 20


def figures(results):
    lines = []
    for label, run in results.items():
        lines += [f"**{run['gpu']}**, {label}:", "", *of_one(run), ""]
    return lines[:-1]


def of_one(run):
    """A row for each figure, a column for each way that there is."""
    ways = {name: run["ways"][name] for name in WAYS if name in run["ways"] and "unavailable" not in run["ways"][name]}
    lines = [f"| what | {' | '.join(ways)} |", "| --- " * (len(ways) + 1) + "|"]
    for what, part, of_way in rows(run):
        cells = [cell(way, part, of_way) for way in ways.values()]
        if any(cells):
            lines.append(f"| {what} | {' | '.join(cells)} |")
    lines.append(f"| wrong results, failures | {' | '.join(map(faults, ways.values()))} |")
    for name in WAYS:
        if "unavailable" in run["ways"].get(name, {}):
            lines += ["", f"{name}: {run['ways'][name]['unavailable']}"]
    return lines


def cell(way, part, of_way):
    if "error" in way.get(part, {"error": ""}):
        return "failed" if part in way else ""
    try:
        return of_way(way[part])
    except (KeyError, IndexError, statistics.StatisticsError):
        return ""


def rows(run):
    """`(what, part, figure of the part)`."""
    ms = lambda values, digits=1: spread([1000 * value for value in values], digits)
    yield "all functions started, s", "start", lambda row: f"{row['started_s']:.1f}"
    yield "GPU memory of all, MB", "start", lambda row: f"{row['gpu_bytes'] / MB:.0f}"
    yield "a further instance, ms", "start", lambda row: ms([one["whole_s"] for one in row["further"]], 0)
    yield (
        "its GPU half; native: its context alone, ms",
        "start",
        lambda row: ms([one.get("gpu_half_s", one.get("context_s")) for one in row["further"]]),
    )
    yield "its GPU memory, MB", "start", lambda row: spread([one["gpu_bytes"] / MB for one in row["further"]], 0)
    for name in run.get("alone_s", ()):
        yield f"{name}: answers a second", "throughput", lambda row, name=name: f"{row[name]['per_s']:.1f}"
        for load in LOADS:
            yield f"{name}, {load}: mean / p50 / p99, ms", "loads", lambda row, name=name, load=load: latencies(row[name][load])
    for at, size in enumerate(sizes(run)):
        for what, key in (("", "whole"), (", of that giving", "give"), (", of that taking", "take")):
            yield f"{words(size)} handed on{what}, ms", "handing", lambda row, at=at, key=key: ms(row["sizes"][at]["seconds"][key], 2)
    yield "model loaded, one instance, ms", "loading", lambda row: ms([one for turn in row["copied_s"]["1"] for one in turn])
    yield "model loaded, eight at once: each, ms", "loading", lambda row: ms([one for turn in row["copied_s"]["8"] for one in turn])
    yield "eight restored at once, with their models: each, ms", "loading", lambda row: ms([one for turn in row["restored_s"] for one in turn], 0)
    for count in counts(run):
        for what in ("launch", "launch and wait"):
            yield f"{what}, {count} functions at once: median / p99, µs", "forwarding", lambda row, count=count, what=what: launches(row, count, what)
    yield "a little request alone: p50 / p99, ms", "beside", lambda row: middle_and_tail(row["alone_ms"], 2)
    yield "beside seven that copy and compute: p50 / p99, ms", "beside", lambda row: middle_and_tail(row["beside_ms"], 2)


def faults(way):
    """Results that were wrong, and calls that failed, in all parts."""
    found = [0, 0]

    def look(value):
        if isinstance(value, dict):
            found[0] += value.get("wrong", 0)
            found[1] += len(value.get("errors", ())) + ("error" in value)
            for one in value.values():
                look(one)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for one in value:
                look(one)

    look(way)
    return f"{found[0]}, {found[1]}"


def at_share(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def middle_and_tail(values, digits):
    return f"{statistics.median(values):.{digits}f} / {at_share(values, 0.99):.{digits}f}"


def latencies(row):
    values = [1000 * value for value in row["latencies_s"]]
    return f"{statistics.fmean(values):.0f} / {statistics.median(values):.0f} / {at_share(values, 0.99):.0f}"


def launches(row, count, what):
    values = {one["functions"]: one["microseconds"][what] for one in row["counts"]}[count]
    return middle_and_tail([value for times in values for value in times], 1)


def part_rows(run, part, key):
    return [row for way in run["ways"].values() for row in way.get(part, {}).get(key, ())]


def sizes(run):
    return list(dict.fromkeys(row["bytes"] for row in part_rows(run, "handing", "sizes")))


def counts(run):
    return sorted({row["functions"] for row in part_rows(run, "forwarding", "counts")})


def words(size):
    return f"{size >> 20} MB" if size >> 20 else f"{size >> 10} KB"
