"""Images of programs that go on, from `h100-cut.json`."""

import statistics

from tables.common import spread, verdict

WAYS = ("beside", "GPU beside", "still")


def figures(results):
    lines = [
        "| what | copied beside the program | of the GPU alone | program stands still | to reach | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows = results["cut"]
    training, service = ([rows[f"{what}, {way}"] for way in WAYS] for what in ("training", "service"))
    milliseconds = lambda values: spread([value * 1e3 for value in values], 0)

    def line(what, rows, value, limit, is_reached):
        lines.append(f"| {what} | {' | '.join(value(row) for row in rows)} | {limit} | {verdict(is_reached(rows[0]))} |")

    line(
        "training, stop for one image, ms",
        training,
        lambda row: milliseconds(row["stopped_s"]),
        "100",
        lambda row: statistics.median(row["stopped_s"]) <= 0.1,
    )
    line(
        "training, time that steps lose to one image, ms",
        training,
        lambda row: milliseconds(row["lost_s"]),
        "40",
        lambda row: statistics.median(row["lost_s"]) <= 0.04,
    )
    line(
        "training, rate with images as often as they can be had, at most every tenth step, against none",
        training,
        lambda row: f"{row['throughput']:.2f}",
        "0.95",
        lambda row: row["throughput"] >= 0.95,
    )
    line("service, stop for one image, ms", service, lambda row: milliseconds(row["stopped_s"]), "", lambda row: True)
    line(
        "service, longest answer while it is imaged beyond the usual one, ms",
        service,
        lambda row: f"{beyond(row) * 1e3:.0f}",
        "60",
        lambda row: beyond(row) <= 0.06,
    )
    line("service, second image: GPU memory copied", service, lambda row: f"{copied(row) * 100:.0f} %", "10 %", lambda row: copied(row) <= 0.1)
    line("service, second image: CPU half written, MB", service, cpu_written, "", lambda row: True)
    line(
        "service, second image, until it is there, ms",
        service,
        lambda row: f"{row['checkpoints'][1]['total_us'] / 1e3:.0f}",
        "300",
        lambda row: row["checkpoints"][1]["total_us"] <= 3e5,
    )
    # What has no limit has no verdict.
    return [row.replace("|  | reached |", "| | |") for row in lines]


def beyond(row):
    """Of the longest answer, how much longer it took than the 99th percentile without an image."""
    return max(row["busy_s"]) - statistics.quantiles(row["quiet_s"], n=100)[98]


def cpu_written(row):
    """Of the second image, and of the first one; not known of measurements before images followed each other."""
    written = row.get("cpu_written")
    return f"{written[1] / 1e6:.0f} (first: {written[0] / 1e6:.0f})" if written else "–"


def copied(row):
    (memory,) = (phase for phase in row["checkpoints"][1]["phases"] if phase["name"] in ("drain", "GPU memory"))
    return memory["from"].get("GPU", 0) / memory["bytes"]


def summary(results):
    stops = [statistics.median(results["cut"][f"training, {way}"]["stopped_s"]) for way in WAYS]
    return [
        f"An image of a training run with 29 GB on the GPU stops it for {stops[0]:.2f} s, and is written while it goes on; "
        f"written while it stands still, it stops it for {stops[-1]:.1f} s."
    ]
