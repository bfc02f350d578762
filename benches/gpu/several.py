"""Programs that use two GPUs in one sandbox: imaged while they go on, ended, restored, and restored with the GPUs the other way
round; every step's digest is compared with that of a native run.
"""

import subprocess
from concurrent.futures import ThreadPoolExecutor

from correctness import ended
from programs import steps_of, steps_program, wait_for
from rekindle import Rekindle

PROGRAMS = ["separate-two-large", "copy-two", "copy-two-large", "split-two", "nccl-threads", "jax-two", "nccl-processes"]
GPUS, SWAPPED = "nvidia:0,1", "nvidia:1,0"
STEPS, PAUSE, AT, LIMIT = 12, 0.5, 4, 150
# Of what is left of a program that has its GPU memory back.
END_LIMIT = 40


def measure(binaries, memory, work, note, only):
    """All at once: what takes long is their start."""
    with Rekindle(gpu=GPUS, binaries=binaries, state=memory / "several") as rekindle:
        names = [name for name in PROGRAMS if name in (only or PROGRAMS)]
        with ThreadPoolExecutor(len(names)) as threads:
            rows = {name: threads.submit(outcome, rekindle, name, work) for name in names}
            for name, row in rows.items():
                note(name, rekindle, row.result)


def outcome(rekindle, name, work):
    native = subprocess.run(steps_program(name, work, STEPS, 0), capture_output=True, text=True, timeout=LIMIT)
    reference = steps_of(native.stdout.splitlines())
    if len(reference) != STEPS:
        raise RuntimeError(f"the native run failed: {native.stderr.strip()[-600:]}")
    image = f"{name}-image"
    rekindle.run(name, *steps_program(name, work, STEPS, PAUSE))
    wait_for(lambda: len(steps_of(rekindle.lines(name))) >= AT or ended(rekindle, name), LIMIT, f"step {AT} of {name}")
    if len(steps_of(rekindle.lines(name))) < AT:
        raise RuntimeError("the sandboxed run failed: " + " | ".join(rekindle.lines(name)[-6:])[-900:])
    checkpoint = rekindle.json("checkpoint", name, "--to", image, "--leave-running", limit=LIMIT)
    ways = {"went on": lambda: name, "restored": lambda: restored(rekindle, image, GPUS), "swapped": lambda: restored(rekindle, image, SWAPPED)}
    row = {"checkpoint": checkpoint, "sizes": rekindle.json("inspect", image).get("sizes")}
    for way, begin in ways.items():
        try:
            row[way] = compared(rekindle, begin(), reference)
        except Exception as error:
            row[way] = str(error)[-600:]
    rekindle("rmi", image)
    return row | {"ok": all(row[way] == "the same" for way in ways), "then": {way: row[way] for way in ways}}


def restored(rekindle, image, gpus):
    name = f"{image}-{gpus[-1]}"
    rekindle("restore", image, "--name", name, "--gpu", gpus, "-d")
    return name


def compared(rekindle, name, reference):
    """Whether the steps that it says, to the last one, are those of the native run."""
    # The one that is restored next listens where this one does.
    wait_for(lambda: ended(rekindle, name), END_LIMIT, f"the end of {name}")
    lines = rekindle.lines(name)
    steps = steps_of(lines)
    if STEPS - 1 not in steps:
        return "ended: " + " | ".join(lines[-4:])[-600:]
    different = [step for step, digest in steps.items() if digest != reference[step]]
    return f"steps {different} differ" if different else "the same"
