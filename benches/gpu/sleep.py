"""A service that is put to sleep and woken by the next request: how long each takes, and the GPU memory that is free meanwhile."""

from images import ask, wait_for_worker
from programs import start_service
from scale import gpu_bytes

LEVELS = ("gpu", "host")


def place(name, work):
    """The file that makes the service answer, and its sandbox."""
    return work / f"{name}-sleep-ask", f"sleep-{name}"


def measure(rekindle, name, work, rounds=5):
    trigger, label = place(name, work)
    start_service(rekindle, label, name, trigger)
    warm_s, expected = ask(trigger)
    row = {"warm_answer_s": warm_s, "levels": {level: [] for level in LEVELS}, "ok": True}
    for _ in range(rounds):
        for level in LEVELS:
            awake = gpu_bytes()
            slept = rekindle.json("sleep", label, "--level", level)
            wait_for_worker(rekindle, rekindle.sandbox(label)["id"])
            asleep = gpu_bytes()
            woken_s, answer = ask(trigger)
            row["ok"] &= answer == expected
            wake = [trace for trace in rekindle.json("trace", label, "--svg", work / "wake.svg")["traces"] if trace["operation"] == "wake"][-1]
            row["levels"][level].append(
                {"slept": slept, "wake": wake, "woken_answer_s": woken_s, "awake_gpu_bytes": awake, "asleep_gpu_bytes": asleep}
            )
    rekindle("kill", label)
    return row
