"""A service that is put to sleep and woken by the next request: how long each takes, and the GPU memory that is free meanwhile."""

import contextlib
import time

from images import ask, wait_for_worker
from programs import start_service, wait_for
from scale import gpu_bytes

LEVELS = ("gpu", "host")
# Memory that a wake was given by descriptors is left behind once more.
ORDER = ("gpu", "gpu", "host")


def place(name, work):
    """The file that makes the service answer, and its sandbox."""
    return work / f"{name}-sleep-ask", f"sleep-{name}"


def has_registered(rekindle):
    """Whether a worker that waits has said that the GPU knows what sleeps in memory."""
    for path in (rekindle.state / "logs").glob("pool-*.log"):
        # One that is taken keeps its log elsewhere.
        with contextlib.suppress(FileNotFoundError):
            if "the GPU knows" in path.read_text():
                return True
    return False


def wait_for_waker(rekindle, level):
    """Wakes are measured as they are after a pause: a worker waits, for the very program if that sleeps in memory."""
    wait_for_worker(rekindle)
    if level == "host":
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: has_registered(rekindle), 10, "what sleeps to be registered")
    time.sleep(0.5)


def measure(rekindle, name, work, rounds=5):
    trigger, label = place(name, work)
    start_service(rekindle, label, name, trigger)
    warm_s, expected = ask(trigger)
    row = {"warm_answer_s": warm_s, "levels": {level: [] for level in LEVELS}, "ok": True}
    for _ in range(rounds):
        for level in ORDER:
            awake = gpu_bytes()
            slept = rekindle.json("sleep", label, "--level", level)
            wait_for_waker(rekindle, level)
            asleep = gpu_bytes()
            woken_s, answer = ask(trigger)
            row["ok"] &= answer == expected
            wake = [trace for trace in rekindle.json("trace", label, "--svg", work / "wake.svg")["traces"] if trace["operation"] == "wake"][-1]
            row["levels"][level].append(
                {"slept": slept, "wake": wake, "woken_answer_s": woken_s, "awake_gpu_bytes": awake, "asleep_gpu_bytes": asleep}
            )
    rekindle("kill", label)
    return row
