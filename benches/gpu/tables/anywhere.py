"""Restores by workers that wait for nobody's image, from `h200-anywhere.json`."""

import statistics

from tables.common import spread, verdict

SERVICE = "llama"


def running(row):
    return [one["running_s"] * 1e3 for one in row["restores"]]


def beyond(row):
    """How much later than a warm answer the first one came, from the command on."""
    return [(one["first_answer_s"] - one["warm_answer_s"]) * 1e3 for one in row["restores"]]


def p95(values):
    """None is beyond what was measured, however few they are."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def beside_others(whole, pieces, quiet):
    """The 95th percentile is held against that of a quiet machine."""
    said = [f"{spread(running(row), 0)}, p95 {p95(running(row)):.0f}" for row in (whole, pieces)]
    limit = 3 * p95(running(quiet))
    reached = verdict(p95(running(pieces)) <= limit)
    return f"| restore to running, two other torch programs start and end in a loop | {said[0]} | {said[1]} | p95 {limit:.0f} ms | {reached} |"


def restores(results):
    lines = [
        "| what | modules whole, ms | in pieces, ms | to reach | |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows = results["anywhere"]
    of = lambda suffix: [rows[f"{SERVICE}, {way}{suffix}"] for way in ("whole", "pieces")]

    def line(what, suffix, values, limit):
        whole, pieces = (values(row) for row in of(suffix))
        lines.append(f"| {what} | {spread(whole, 0)} | {spread(pieces, 0)} | {limit} ms | {verdict(statistics.median(pieces) <= limit)} |")

    line("restore to running", "", running, 80)
    line("first answer beyond a warm one", "", beyond, 180)
    line("restore to running, no worker waits", ", no worker", running, 600)
    lines.append(beside_others(*of(", beside others"), quiet=of("")[1]))
    turns = running(rows["in turn"])
    reached = statistics.median(turns) <= 80 and max(turns) <= 150
    lines.append(f"| twelve images in turn, twice: restore to running | | {spread(turns, 0)} | 80 ms, at worst 150 ms | {verdict(reached)} |")
    return lines


def summary(results):
    whole, pieces = (statistics.median(running(results["anywhere"][f"{SERVICE}, {way}"])) for way in ("whole", "pieces"))
    return [
        f"By a worker with a context and nothing else, a language model on transformers with 70 modules is brought back in {pieces:.0f} ms; "
        f"where its modules are loaded in their old order, in {whole:.0f} ms."
    ]


def codes(results):
    lines = ["| program | modules | in pieces | kernels | loaded |", "| --- | --- | --- | --- | --- |"]
    for name, workers in results["anywhere"]["in turn"]["code"].items():
        if "," not in name:
            (code,) = workers
            lines.append(f"| {name} | {code['modules']} | {code['in_pieces']} | {code['kernels']} | {code['loaded']} |")
    return lines
