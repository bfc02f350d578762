"""Programs in one context and with a worker each, from `h200-sharing.json`."""

import statistics

from tables.common import spread

WAYS = ("shared", "own")
MB = 1 << 20


def figures(results):
    rows = [results["sharing"][way] for way in WAYS]
    lines = ["| what | one context | a worker each |", "| --- | --- | --- |"]

    def line(what, value):
        shared, own = (value(row) for row in rows)
        lines.append(f"| {what} | {shared} | {own} |")

    milliseconds = lambda values: spread([value * 1e3 for value in values], 0)
    line("GPU memory that a further program takes beside its data, MB", lambda row: spread([more / MB for more in further(row)], 0))
    line("until it runs, ms", lambda row: milliseconds([one["running_s"] for one in row["restores"] + row["again"]]))
    line("GPU half of that, ms", lambda row: spread([gpu_half(one) / 1e3 for one in row["restores"] + row["again"]], 1))
    line("first answer of the first program again, ms", lambda row: milliseconds([one["first_answer_s"] for one in row["again"]]))
    line("all six asked again and again at once, answers a second", lambda row: f"{row['beside']['answers_per_s']:.0f}")
    return lines


def further(row):
    """Of each restore with others before it."""
    restores = row["restores"]
    pairs = [pair for pair in zip(restores, restores[1:]) if pair[0]["program"] != pair[1]["program"]]
    return [after["gpu_bytes"] - before["gpu_bytes"] - after["device_bytes"] for before, after in pairs]


def gpu_half(one):
    """Microseconds of its steps, but for those that it waited in; contents go on loading after them."""
    return sum(row["duration_us"] for row in one["report"]["phases"] if row["lane"] == "gpu half")


def summary(results):
    shared, own = (statistics.median(further(results["sharing"][way])) / MB for way in WAYS)
    return [
        f"A further program in a context that is shared takes {shared:.0f} MB of GPU memory beside its data; with a context of its own {own:.0f} MB."
    ]
