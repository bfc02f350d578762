"""Programs of one tenant in one context, beside the same programs with a worker each: what a further one costs, and how they
do beside each other."""

import statistics
import threading
import time

from anywhere import settle, wait_for_worker
from images import ask
from programs import label, served_program, wait_for
from rekindle import Rekindle
from scale import gpu_bytes

PROGRAMS = ["hello", "resnet18", "resnet152", "bert-base", "opt-350m", "sdpa-bf16"]
TENANT = "bench"
# With a worker each, and in one context.
WAYS = {"own": (), "shared": ("--share", TENANT)}
AGAIN = 5
BUSY_S = 4


def make(rekindle, names, work):
    """Images of programs that may share, whose answers they are to give again."""
    triggers = {name: work / f"{label(name)}-sharing-ask" for name in names}
    for name in names:
        options = ("--share", TENANT, "--gpu", rekindle.gpu)
        rekindle("run", "-d", "--name", label(name), *options, "--", *served_program(name, triggers[name]))
    made = {}
    for name in names:
        wait_for(lambda: "ready" in rekindle.lines(label(name)) or not rekindle.sandbox(label(name))["pid"], 240, name)
        ask(triggers[name])
        warm, answer = ask(triggers[name])
        report = rekindle.json("checkpoint", label(name), "--to", label(name), "--stop")
        made[name] = {"trigger": triggers[name], "answer": answer, "warm_answer_s": warm, "checkpoint": report}
    return made


def restore(rekindle, name, image, options):
    restored, began = f"{label(name)}-restored", time.perf_counter()
    report = rekindle.json("restore", "-d", label(name), "--name", restored, *options)
    running = time.perf_counter() - began
    _, answer = ask(image["trigger"])
    first = time.perf_counter() - began
    # It ends when all of its contents are there.
    wait_for(lambda: rekindle.sandbox(restored)["device_bytes"], 10, "its memory to be told")
    return {
        "program": name,
        "running_s": running,
        "first_answer_s": first,
        "same": answer == image["answer"],
        "device_bytes": rekindle.sandbox(restored)["device_bytes"],
        "gpu_bytes": gpu_bytes(),
        "report": report,
    }


def beside(made, names):
    """All are asked again and again at once: the answers of each, their times, and whether they are the right ones."""
    rows = {name: {"times_s": [], "same": True} for name in names}
    until = time.perf_counter() + BUSY_S

    def keep_asking(name):
        while time.perf_counter() < until:
            took, answer = ask(made[name]["trigger"])
            rows[name]["times_s"].append(took)
            rows[name]["same"] &= answer == made[name]["answer"]

    threads = [threading.Thread(target=keep_asking, args=(name,)) for name in names]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    return {
        "answers_per_s": sum(len(row["times_s"]) for row in rows.values()) / took,
        "same": all(row["same"] for row in rows.values()),
        "median_s": {name: statistics.median(row["times_s"]) for name, row in rows.items()},
        "p95_s": {name: sorted(row["times_s"])[int(len(row["times_s"]) * 0.95)] for name, row in rows.items()},
    }


def measure(binaries, memory, work, note, programs=None):
    """`note(name, rekindle, function)` keeps each row."""
    names = programs or PROGRAMS
    with Rekindle(gpu="nvidia", binaries=binaries, state=memory / "sharing", REKINDLE_POOL="2") as rekindle:
        made = {}
        note(
            "images",
            rekindle,
            lambda: (
                made.update(make(rekindle, names, work))
                or {"ok": True, **{n: {k: v for k, v in m.items() if k != "trigger"} for n, m in made.items()}}
            ),
        )
        for way, options in WAYS.items():
            if made:
                note(way, rekindle, lambda: one_way(rekindle, made, names, options))


def one_way(rekindle, made, names, options):
    settle(rekindle)
    before, rows = gpu_bytes(), []
    if options:
        # The context is there, as it is for all but the first.
        rows.append(restore(rekindle, names[0], made[names[0]], options))
        rekindle("kill", f"{label(names[0])}-restored")
        settle(rekindle)
    context = gpu_bytes() - before
    for name in names:
        wait_for_worker(rekindle)
        time.sleep(0.5)
        rows.append(restore(rekindle, name, made[name], options))
    all_bytes = gpu_bytes() - before
    together = beside(made, names)
    again = []
    for _ in range(AGAIN):
        rekindle("kill", f"{label(names[0])}-restored")
        wait_for_worker(rekindle)
        time.sleep(0.5)
        again.append(restore(rekindle, names[0], made[names[0]], options))
    rekindle("kill", *[f"{label(name)}-restored" for name in names])
    return {
        "ok": all(one["same"] for one in rows + again) and together["same"],
        "context_bytes": context,
        "all_bytes": all_bytes,
        "restores": rows,
        "again": again,
        "beside": together,
    }
