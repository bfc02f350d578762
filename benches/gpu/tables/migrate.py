"""Moves of a service from one GPU to another and back, from `h200-migrate.json`."""

from tables.common import spread

GB = 1e9
WAYS = {"direct": "GPU to GPU", "rounds": "in rounds through the host's memory", "still": "through the host's memory, all in the stop"}


def figures(results):
    lines = [
        "| program | GPU memory, GB | way | stands still, ms | longest request beyond a usual one, ms | until it is there, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in results["migrate"].items():
        usual = sorted(row["quiet_s"])[len(row["quiet_s"]) // 2]
        for way, moves in row["ways"].items():
            reports = [one["report"] for one in moves]
            lines.append(
                f"| {name} | {reports[0]['bytes'] / GB:.1f} | {WAYS[way]} | {spread([one['stopped_us'] / 1e3 for one in reports], 0)} "
                f"| {spread([(one['longest_s'] - usual) * 1e3 for one in moves], 0)} | {spread([one['total_us'] / 1e6 for one in reports], 1)} |"
            )
    return lines


def summary(results):
    rows = results["migrate"]
    name = max(rows, key=lambda name: rows[name]["ways"]["direct"][0]["report"]["bytes"])
    reports = [one["report"] for one in rows[name]["ways"]["direct"]]
    stopped = spread([one["stopped_us"] / 1e3 for one in reports], 0)
    return [
        f"A service with {reports[0]['bytes'] / GB:.0f} GB of GPU memory moves to another H200 while it is asked: it stands still for {stopped} ms."
    ]
