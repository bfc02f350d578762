"""Training runs that are brought back from their images, from `h100-recovery.json`."""

from tables.common import spread, verdict


def figures(results):
    lines = [
        "| program | faults | lost at each, s | to reach, s | | until it ran again, s | steps done again | goodput | to reach | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for program, row in results["recovery"].items():
        if not row.get("kills"):
            continue
        of = lambda field: [kill[field] for kill in row["kills"]]
        lost, limit = of("lost_s"), row["recovery"]["plan"]["every_ms"] / 1000 + 2
        cells = [program, str(len(lost)), spread(lost, 1), f"{limit:.0f}", verdict(max(lost) <= limit)]
        cells += [spread(of("running_s"), 1), spread(of("steps_again"), 0), f"{row['goodput']:.3f}", "0.9", verdict(row["goodput"] >= 0.9)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
