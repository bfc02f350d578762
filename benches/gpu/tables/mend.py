"""Workers that are killed under training runs, from `h200-mend.json`."""

from tables.common import spread

REACH_S, AIM_S = 2, 0.5


def runs(results):
    """The rows with kills, each with its program and how answers that differ are taken."""
    rows = results["mend"].items()
    return [(*name.split(", "), row) for name, row in rows if row.get("kills")]


def lost(row):
    return [kill["lost_s"] for kill in row["kills"]]


def figures(results):
    lines = [
        "| program | answers | kills | lost at a kill, s | to reach, s | | base, GB | a base takes, ms | steps compared | differ | a step, over that without |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for program, how, row in runs(results):
        standing, all_lost = row["standing"], lost(row)
        reached = "reached" if max(all_lost) <= REACH_S else "**not reached**"
        differs = "none" if row["first_difference"] is None else f"from step {row['first_difference']}"
        cells = [program, f"`{how}`", str(len(all_lost)), spread(all_lost, 2), f"{REACH_S} (aim {AIM_S})", reached]
        cells += [f"{standing['base_bytes'] / 1e9:.1f}", f"{standing['base_us'] / 1e3:.1f}", str(row["steps_compared"]), differs]
        cells.append(f"{row['mend_step_s'] / row['step_s']:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def summary(results):
    program, _, row = runs(results)[0]
    median = sorted(lost(row))[len(row["kills"]) // 2]
    return [
        f"A training run ({program}) whose GPU worker is killed goes on after {median:.2f} s with `--mend`, with the losses of a run that nobody harmed."
    ]
