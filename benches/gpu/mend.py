"""Training runs whose GPU worker is killed again and again, with `--mend`: what each kill costs, what keeping up costs, and whether
the steps are those of a run that nobody harmed."""

import os
import signal
import statistics
import time

from cut import AHEAD, TRAINED_AHEAD, rows, wait_for_step
from programs import python_program, wait_for
from rekindle import Rekindle

# How each is run. The last one never waits for its GPU to rest.
PROGRAMS = {name: (name,) for name in ("gpt2-train", "gpt2-large-train")}
PROGRAMS["encoder-train ahead"] = (TRAINED_AHEAD, "--ahead", AHEAD)
# Steps before anything is measured, of the rate, and between two kills.
WARM, BASE, EVERY = 6, 30, 8
KILLS = 5


def rate(file):
    base = rows(file)[WARM : WARM + BASE]
    return (base[-1][1] - base[0][1]) / (len(base) - 1)


def unharmed(rekindle, name, program, file):
    """A run without `--mend`: seconds a step, and the digest of each."""
    rekindle.run(name, *python_program(*program, "--train", file))
    wait_for_step(rekindle, name, file, WARM + BASE + (KILLS + 2) * EVERY, limit=600)
    rekindle("kill", name)
    return rate(file), {i: digest for i, _, digest in rows(file)}


def harmed(rekindle, name, program, file, how, step, digests):
    rekindle("run", "-d", "--name", name, "--gpu", rekindle.gpu, f"--mend={how}", "--", *python_program(*program, "--train", file))
    wait_for_step(rekindle, name, file, WARM + BASE, limit=600)
    own_step, quiet = rate(file), rekindle.sandbox(name)["mending"]
    kills = []
    for _ in range(KILLS):
        wait_for_step(rekindle, name, file, len(rows(file)) + EVERY, limit=600)
        wait_for(lambda: rekindle.sandbox(name)["mending"]["on"], 60, "mending to be on")
        before, (worker,) = rekindle.sandbox(name)["mending"], rekindle.sandbox(name)["workers"]
        at = time.time()
        os.kill(worker, signal.SIGKILL)
        wait_for_step(rekindle, name, file, len(rows(file)) + 3, limit=120)
        row = rekindle.sandbox(name)
        seen = rows(file)
        gaps = [later - earlier for (_, earlier, _), (_, later, _) in zip(seen, seen[1:]) if later > at and earlier < at + 10]
        kills.append(
            {"before": before, "mended": row["mending"]["mended"], "problem": row["problem"], "gap_s": max(gaps), "lost_s": max(gaps) - own_step}
        )
    seen = {i: digest for i, _, digest in rows(file)}
    problem = rekindle.sandbox(name)["problem"]
    rekindle("kill", name)
    common = sorted(set(seen) & set(digests))
    differ = [i for i in common if seen[i] != digests[i]]
    return {
        "ok": len(kills) == KILLS and problem is None and (how == "loose" or not differ),
        "step_s": step,
        "mend_step_s": own_step,
        "cost": own_step / step - 1,
        "standing": quiet,
        "kills": kills,
        "lost_s": statistics.median(kill["lost_s"] for kill in kills),
        "most_lost_s": max(kill["lost_s"] for kill in kills),
        "steps_compared": len(common),
        "first_difference": differ[0] if differ else None,
    }


def measure(binaries, memory, work, note, only):
    """`note(name, rekindle, function)` keeps each row; `only` are names of programs."""
    for label, program in PROGRAMS.items():
        if label not in (only or PROGRAMS):
            continue
        where = label.replace(" ", "-")
        with Rekindle(gpu="nvidia", binaries=binaries, state=memory / f"mend-{where}") as rekindle:
            known = []
            note(
                f"{label}, unharmed",
                rekindle,
                lambda: known.append(unharmed(rekindle, "unharmed", program, work / f"{where}-unharmed")) or {"ok": True, "step_s": known[0][0]},
            )
            for how in ("strict", "loose"):
                note(f"{label}, {how}", rekindle, lambda: harmed(rekindle, f"mended-{how}", program, work / f"{where}-{how}", how, *known[0]))
