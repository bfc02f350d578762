"""Images of programs that go on, from `h100-cut.json`."""

import statistics

from tables.common import spread, verdict

WAYS = ("beside", "GPU beside", "still")


def figures(results):
    lines = [
        "| what | copied beside the program | of the GPU alone | program stands still | driver + CRIU | to reach | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = results["cut"]
    training, service = ([rows[f"{what}, {way}"] for way in WAYS] for what in ("training", "service"))
    milliseconds = lambda values: spread([value * 1e3 for value in values], 0)

    def line(what, rows, value, limit, is_reached, by_driver=""):
        lines.append(f"| {what} | {' | '.join(value(row) for row in rows)} | {by_driver} | {limit} | {verdict(is_reached(rows[0]))} |")

    line(
        "training, stop for one image, ms",
        training,
        lambda row: milliseconds(row["stopped_s"]),
        "100",
        lambda row: statistics.median(row["stopped_s"]) <= 0.1,
        milliseconds(rows["training, driver"]["stopped_s"]),
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
    line(
        "training, rate while an image is always being made",
        training,
        lambda row: f"{row['without_pause']['throughput']:.2f}",
        "0.75",
        lambda row: row["without_pause"]["throughput"] >= 0.75,
    )
    line("service, stop for one image, ms", service, lambda row: milliseconds(row["stopped_s"]), "", lambda row: True)
    line(
        "service, longest answer while it is imaged beyond the usual one, ms",
        service,
        lambda row: f"{beyond(row) * 1e3:.0f}",
        "60",
        lambda row: beyond(row) <= 0.06,
    )
    for number, what in ((1, "second image, at once"), (2, "third image, after 100 answers")):
        line(
            f"service, {what}: written, MB",
            service,
            lambda row: f"{written(row, number) / 1e6:.0f} ({written(row, number) / size(row, number) * 100:.1f} %)",
            "10 %",
            lambda row: written(row, number) <= 0.1 * size(row, number),
        )
        line(
            f"service, {what}: until it is there, ms",
            service,
            lambda row: f"{row['checkpoints'][number]['total_us'] / 1e3:.0f}",
            "300",
            lambda row: row["checkpoints"][number]["total_us"] <= 3e5,
        )
    # What has no limit has no verdict.
    return [row.replace("|  | reached |", "| | |") for row in lines]


def beyond(row):
    """Of the longest answer, how much longer it took than the 99th percentile without an image."""
    return max(row["busy_s"]) - statistics.quantiles(row["quiet_s"], n=100)[98]


def written(row, number):
    """Bytes of an image that none before it has: of its CPU half, and of GPU memory."""
    (memory,) = (phase for phase in row["checkpoints"][number]["phases"] if phase["name"] in ("drain", "GPU memory"))
    return row["cpu_written"][number] + memory["from"].get("GPU", 0)


def size(row, number):
    """Of the program: what an image would have that followed no other."""
    sizes = row["sizes"][number]
    return sizes["cpu"] + sizes["gpu"]


def summary(results):
    stops = [statistics.median(results["cut"][f"training, {way}"]["stopped_s"]) for way in (*WAYS, "driver")]
    return [
        f"An image of a training run with 29 GB on the GPU stops it for {stops[0]:.2f} s, and is written while it goes on; "
        f"written while it stands still, it stops it for {stops[-2]:.1f} s, and the driver's own checkpoint with CRIU does for {stops[-1]:.0f} s."
    ]
