"""Many instances of one image at once: when the last one has answered, and what memory they hold."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from images import answers, ask, wait_for_worker
from programs import python_program, resident, wait_for

COUNTS = (1, 2, 4, 8)
# Of a daemon that is set up for it: as many workers wait as instances are begun at once.
ENVIRONMENT = {"REKINDLE_POOL": str(max(COUNTS)), "REKINDLE_POOL_LIMIT": str(max(COUNTS))}


def gpu_bytes():
    """Memory in use on the first GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) << 20


def together(rekindle, image, count, trigger, expected, rounds):
    """`count` restores begun at once, `rounds` times. All wait for the same file; it is put back as often as one takes it."""
    row = {"running_s": [], "answered_s": [], "resident_bytes": [], "gpu_bytes": [], "ok": True}
    for n in range(rounds):
        names = [f"{image}-{count}-{n}-{i}" for i in range(count)]
        # All of them: those that are being made would hold up the rest.
        wait_for_worker(rekindle, max(COUNTS))
        before, start = gpu_bytes(), time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda name: rekindle.restore(image, name), names))
        row["running_s"].append(time.perf_counter() - start)
        wanted = len(answers(trigger)) + count
        while len(answers(trigger)) < wanted or not all(rekindle.lines(name) for name in names):
            answered = time.perf_counter() - start
            if answered > 60:
                raise TimeoutError(f"{count} instances did not all answer within 60 s")
            if not trigger.exists():
                trigger.touch()
            time.sleep(0.0005)
        row["answered_s"].append(answered)
        trigger.unlink(missing_ok=True)
        row["ok"] &= set(answers(trigger)) == {expected}
        row["resident_bytes"].append(sum(resident([rekindle.sandbox(name)["pid"]]) for name in names) / count)
        row["gpu_bytes"].append((gpu_bytes() - before) / count)
        rekindle("kill", *names)
        wait_for(lambda: not any(rekindle.sandbox(name)["pid"] for name in names), 30, "the instances to end")
    return row


def measure(rekindle, name, work, rounds=3):
    trigger, label, image = work / f"{name}-scale-ask", f"scale-{name}", f"{name}-scaled"
    rekindle.run(label, *python_program(name, "--serve", trigger))
    wait_for(lambda: "ready" in rekindle.lines(label) or not rekindle.sandbox(label)["pid"], 120, f"sandboxed {name}")
    _, expected = ask(trigger)
    rekindle("checkpoint", label, "--to", image, "--stop")
    row = {"counts": {str(count): together(rekindle, image, count, trigger, expected, rounds) for count in COUNTS}}
    rekindle("rmi", image)
    return {**row, "ok": all(one["ok"] for one in row["counts"].values())}
