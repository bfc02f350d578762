"""Does a program that was checkpointed, killed and restored print what an uninterrupted one prints?"""

import subprocess
import time

from programs import steps_of, steps_program, wait_for

STEPS, PAUSE, AT = 10, 0.35, 4


def measure(rekindle, name, work, limit):
    """A native reference; then run, checkpoint at a step in the middle, restore; every step's digest compared."""
    started = time.monotonic()
    native = subprocess.run(steps_program(name, work, STEPS, 0), capture_output=True, text=True, timeout=limit)
    reference = steps_of(native.stdout.splitlines())
    if len(reference) != STEPS:
        raise RuntimeError(f"the native run failed: {native.stderr.strip()[-600:]}")
    image, restored = f"{name}-image", f"{name}-restored"
    rekindle.run(name, *steps_program(name, work, STEPS, PAUSE))
    wait_for(lambda: len(steps_of(rekindle.lines(name))) >= AT or ended(rekindle, name), limit, f"step {AT} of {name}")
    if len(steps_of(rekindle.lines(name))) < AT:
        raise RuntimeError("the sandboxed run failed: " + " | ".join(rekindle.lines(name)[-6:])[-900:])
    checkpoint = rekindle.json("checkpoint", name, "--to", image, "--stop", limit=limit)
    before = steps_of(rekindle.lines(name))
    try:
        restore = rekindle.restore(image, restored)
    except Exception as error:
        return {"ok": False, "error": str(error), "checkpoint": checkpoint}
    wait_for(lambda: "done" in rekindle.lines(restored) or ended(rekindle, restored), limit, f"the end of {restored}")
    lines = rekindle.lines(restored)
    after = steps_of(lines)
    sizes = rekindle.json("inspect", image).get("sizes")
    rekindle("rmi", image)
    different = [i for i, digest in {**before, **after}.items() if digest != reference.get(i)]
    whole = sorted(set(before) | set(after)) == list(range(STEPS))
    return {
        "ok": whole and not different,
        "steps_before": len(before),
        "steps_after": len(after),
        "different": different,
        "tail": [] if whole else lines[-6:],
        "sizes": sizes,
        "checkpoint": checkpoint,
        "restore": restore,
        "seconds": round(time.monotonic() - started, 1),
    }


def ended(rekindle, name):
    return not rekindle.sandbox(name)["pid"]
