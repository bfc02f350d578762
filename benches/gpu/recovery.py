"""Training runs that are imaged every few seconds and whose GPU worker is killed once a minute, without `--mend`: they are brought
back from their newest image. What each kill costs, and what is left of the run's rate. Faults do not know of images: the kills
come in different parts of the interval between two, spread evenly over it."""

import os
import signal
import time

from cut import rows, wait_for_step
from programs import python_program, wait_for
from rekindle import Rekindle

PROGRAMS = ["gpt2-train", "gpt2-large-train"]
INTERVAL_S, FAULT_EVERY_S, FAULTS = 5, 60, 3
WARM, BASE = 6, 30


def undisturbed(rekindle, name, program, file):
    """Seconds a step without images and without faults, and the digest of each."""
    rekindle.run(name, *python_program(program, "--train", file))
    wait_for_step(rekindle, name, file, WARM + BASE)
    rekindle("kill", name)
    base = rows(file)[WARM:]
    return (base[-1][1] - base[0][1]) / (len(base) - 1), {i: digest for i, _, digest in rows(file)}


def with_faults(rekindle, name, program, file, step, digests):
    options = ["--every", f"{INTERVAL_S}s", "--keep", "2", "--restart", "on-failure"]
    rekindle("run", "-d", "--name", name, "--gpu", rekindle.gpu, *options, "--", *python_program(program, "--train", file))
    wait_for_step(rekindle, name, file, WARM)
    recovery = lambda: rekindle.sandbox(name)["recovery"]
    wait_for(lambda: recovery()["images"], 60, "an image")
    began, first = time.time(), rows(file)[-1][0]
    kills = []
    for number in range(FAULTS):
        time.sleep(max(0, began + (number + 0.5) * FAULT_EVERY_S - time.time()))
        for is_wanted in (False, True):
            is_imaged = lambda: rekindle.sandbox(name)["state"] == "checkpointing"
            wait_for(lambda: is_imaged() == is_wanted, 2 * INTERVAL_S, "the next image to be begun")
        into = (number + 0.5) / FAULTS * INTERVAL_S
        time.sleep(into)
        kills.append({"into_interval_s": into, **kill(rekindle, name, file, step)})
    time.sleep(max(0, began + FAULTS * FAULT_EVERY_S - time.time()))
    seen, took, row = rows(file), time.time() - began, rekindle.sandbox(name)
    rekindle("kill", name)
    done = max(i for i, _, _ in seen) - first
    differ = [i for i, _, digest in seen if digests.get(i, digest) != digest] + repeated_otherwise(seen)
    return {
        "ok": len(kills) == FAULTS and row["recovery"]["recoveries"] == FAULTS and not differ,
        "step_s": step,
        "took_s": took,
        "steps": done,
        "goodput": done * step / took,
        "kills": kills,
        "recovery": row["recovery"],
        "differ": differ,
    }


def repeated_otherwise(seen):
    """Steps that were done again after a fault, and not as the first time."""
    digests = {}
    return [i for i, _, digest in seen if digests.setdefault(i, digest) != digest]


def kill(rekindle, name, file, step):
    """Kills the worker. Lost: from that until the run has come as far again, and one step farther, less that step."""
    (worker,) = rekindle.sandbox(name)["workers"]
    reached, before = rows(file)[-1][0], len(rows(file))
    killed = time.time()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: any(i > reached and at > killed for i, at, _ in rows(file)), 55, f"{name} to be back")
    after = [row for row in rows(file)[before:] if row[1] > killed + step]
    back = next(at for i, at, _ in after if i > reached)
    again = [row for row in after if row[0] <= reached]
    return {"lost_s": back - killed - step, "running_s": after[0][1] - killed, "steps_again": len(again)}


def measure(binaries, memory, work, note, only):
    """`note(name, rekindle, function)` keeps each row."""
    for program in [program for program in PROGRAMS if program in (only or PROGRAMS)]:
        with Rekindle(gpu="nvidia", binaries=binaries, state=memory / f"recovery-{program}") as rekindle:
            known = []
            note(
                f"{program}, undisturbed",
                rekindle,
                lambda: (
                    known.append(undisturbed(rekindle, "undisturbed", program, work / f"{program}-undisturbed"))
                    or {"ok": True, "step_s": known[0][0]}
                ),
            )
            note(program, rekindle, lambda: with_faults(rekindle, "imaged", program, work / f"{program}-imaged", *known[0]))
