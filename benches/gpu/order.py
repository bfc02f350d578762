"""In which order GPU buffers are loaded, and what runs ahead of them: restores up to the first answer, by order."""

import statistics
import time

from images import ask, rates, wait_for_worker
from programs import start_service

ORDERS = ("none", "default", "profile", "worst")


def measure(rekindle, name, work, rounds=5):
    trigger, label, image = work / f"{name}-order-ask", f"order-{name}", f"{name}-order"
    start_service(rekindle, label, name, trigger)
    _, expected = ask(trigger)
    row = {"ok": True, "warm_answer_s": min(ask(trigger)[0] for _ in range(5)), "orders": {order: [] for order in ORDERS}}
    rekindle.json("checkpoint", label, "--to", image, "--stop")
    request = f"touch {trigger}; n=$(wc -l < {trigger}.answers); until [ $(wc -l < {trigger}.answers) -gt $n ]; do sleep 0.01; done"
    rekindle("profile", image, "--gpu", rekindle.gpu, "--", "sh", "-c", request)
    for n in range(rounds):
        for order in ORDERS:
            restored = f"{label}-{order}-{n}"
            wait_for_worker(rekindle)
            start = time.perf_counter()
            rekindle.json("restore", image, "--name", restored, "--gpu", rekindle.gpu, "--order", order, "-d")
            running = time.perf_counter() - start
            _, answer = ask(trigger)
            first = time.perf_counter() - start
            again, _ = ask(trigger)
            row["ok"] &= answer == expected
            phases = rekindle.json("trace", restored, "--svg", work / "trace.svg")["traces"][-1]["phases"]
            times = {
                "running_s": running,
                "first_answer_s": first,
                "warm_answer_s": again,
                "mended": any(phase["name"] == "a fault mended" for phase in phases),
            }
            row["orders"][order].append({**rates(phases), **times, "phases": phases})
            rekindle("kill", restored)
    rekindle("rmi", image)
    row["first_answer_s"] = {order: statistics.median(one["first_answer_s"] for one in found) for order, found in row["orders"].items()}
    return row
