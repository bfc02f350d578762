"""Restores by workers that wait for nobody's image, from `h200-anywhere.json`."""

import statistics

from tables.common import spread, verdict

SERVICE = "llama"


def running(row):
    return [one["running_s"] * 1e3 for one in row["restores"]]


def beyond(row):
    """How much later than a warm answer the first one came, from the command on."""
    return [(one["first_answer_s"] - one["warm_answer_s"]) * 1e3 for one in row["restores"]]


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
    quiet = statistics.quantiles(running(of("")[1]), n=20)[-1]
    line("restore to running, two other torch programs start and end in a loop", ", beside others", running, round(3 * quiet))
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
