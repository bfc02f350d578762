"""A restore with the program's CPU pages mapped from the image against one that reads them, from images of one program."""

import time

from images import ask
from programs import start_service, wait_for

WAYS = ("read", "map")


def place(name, work):
    """The file that makes the service answer, and its sandbox."""
    return work / f"{name}-pages-ask", f"pages-{name}"


def workers_wait(rekindle):
    pool = rekindle.json("ps")["pool"]
    return pool and all(worker["ready"] for worker in pool)


def measure(rekindle, name, work, rounds=5):
    """The two ways in turn; the first restore of each is counted too: the image is in memory either way."""
    trigger, label = place(name, work)
    start_service(rekindle, label, name, trigger)
    warm_s, expected = ask(trigger)
    row = {"warm_answer_s": warm_s, "checkpoints": {}, "sizes": {}, "restores": {way: [] for way in WAYS}, "ok": True}
    for way in WAYS:
        # Another daemon takes the next image; the program does not notice.
        rekindle("shutdown")
        rekindle.environment["REKINDLE_TUNING"] = f"restore.map-pages={'off' if way == 'read' else 'on'}"
        image = f"{name}-{way}"
        row["checkpoints"][way] = rekindle.json("checkpoint", label, "--to", image, "--stop" if way == WAYS[-1] else "--leave-running")
        row["sizes"][way] = rekindle.json("inspect", image)["sizes"]
    rekindle("shutdown")
    del rekindle.environment["REKINDLE_TUNING"]
    for n in range(rounds):
        for way in WAYS:
            restored = f"{label}-{way}-{n}"
            wait_for(lambda: workers_wait(rekindle), 30, "the workers of the pool")
            start = time.perf_counter()
            report = rekindle.restore(f"{name}-{way}", restored)
            running = time.perf_counter() - start
            _, answer = ask(trigger)
            first = time.perf_counter() - start
            again, second = ask(trigger)
            row["ok"] &= answer == expected and second != ""
            times = {"running_s": running, "first_answer_s": first, "warm_answer_s": again}
            row["restores"][way].append({**times, "report": report})
            rekindle("kill", restored)
    rekindle("rmi", *(f"{name}-{way}" for way in WAYS))
    return row
