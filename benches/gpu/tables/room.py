"""Images where the GPU has no room for a copy, from `h200-room.json`."""

from tables.common import spread
from tables.cut import beyond

WAYS = ("ahead", "still")


def figures(results):
    """Nothing before they are measured."""
    if "room" not in results:
        return []
    lines = ["| what | written ahead | program stands still |", "| --- | --- | --- |"]
    large, service, training = ([results["room"][f"{what}, {way}"] for way in WAYS] for what in ("large service", "service", "training"))

    def line(what, rows, value):
        lines.append(f"| {what} | {' | '.join(value(row) for row in rows)} |")

    stop = lambda row: spread([value * 1e3 for value in row["stopped_s"]], 0)
    for what, rows in {"large service": large, "service": service}.items():
        line(f"{what}, stop for one image, ms", rows, stop)
        line(f"{what}, longest answer while it is imaged beyond the usual one, ms", rows, lambda row: f"{beyond(row) * 1e3:.0f}")
        line(f"{what}, until the image is there, ms", rows, until)
        line(f"{what}, looked at ahead, GB", rows, lambda row: bytes_of(row, "ahead_bytes"))
        line(f"{what}, new in the stop, GB", rows, lambda row: bytes_of(row, "new_bytes"))
        line(f"{what}, written in the stop, GB", rows, lambda row: bytes_of(row, "still_bytes"))
    line("training, stop for one image, ms", training, stop)
    line("training, time that steps lose to one image, ms", training, lambda row: spread([value * 1e3 for value in row["lost_s"]], 0))
    line("training, looked at ahead, GB", training, lambda row: bytes_of(row, "ahead_bytes"))
    line("training, written in the stop, GB", training, lambda row: bytes_of(row, "still_bytes"))
    return lines


def until(row):
    return spread([report["total_us"] / 1e3 for report in row["checkpoints"]], 0)


def bytes_of(row, field):
    """Of programs that stand still for all, nothing is told."""
    known = [memory[field] / 1e9 for memory in row["memory"] if memory]
    return spread(known, 2) if known else ""
