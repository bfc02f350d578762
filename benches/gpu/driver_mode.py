"""Driver mode: a program that was started without Rekindle, taken by `checkpoint --pid` and brought back; then the same
by the driver's own checkpoint with CRIU alone (`baseline`), image in the same memory.
"""

import os
import statistics
import time

import baseline
from images import ask
from programs import Native, python_program


def start(name, work):
    """The program twice, for either way: they take long to start, and not longer beside each other."""
    trigger = work / f"{name}-pid-ask"
    program = Native(python_program(name, "--serve", trigger), work / f"{name}-pid.log", start_new_session=True)
    return (program, trigger), baseline.start(name, work)


def measure(rekindle, name, work, memory, started=None, quick=False, then=None):
    """`then(image, trigger, answer)` takes part in the row."""
    (ours, theirs) = started or start(name, work)
    # Of what is large CRIU alone is not asked to bring it back.
    checkpoints, restores, rounds = (1, 2, 0) if quick else (2, 3, 2)
    try:
        row = tried(lambda: by_rekindle(rekindle, name, *ours, checkpoints, restores, then))
        row["criu"] = tried(lambda: baseline.measure(name, work, memory, rounds, theirs))
    finally:
        for program, _ in (ours, theirs):
            program.end()
    if name.startswith("train-"):
        row["gb_per_gpu"] = float(os.environ.get("REKINDLE_BENCH_GB", "25"))
    return {**row, "ok": row["ok"] and row["criu"]["ok"]}


def tried(way):
    """One way that fails does not keep the other from being measured."""
    try:
        return way()
    except Exception as error:
        return {"ok": False, "error": str(error)[-1500:]}


def by_rekindle(rekindle, name, program, trigger, checkpoints, restores, then=None):
    image = f"{name}-pid"
    row = {"ok": False, "checkpoints": [], "restores": []}
    try:
        program.wait_ready()
        row["warm_answer_s"], expected = ask(trigger)
        same, pid = True, program.process.pid
        for n in range(checkpoints):
            last = n == checkpoints - 1
            start = time.perf_counter()
            report = rekindle.json("checkpoint", "--pid", pid, "--mode", "driver", "--to", image, "--stop" if last else "--leave-running")
            row["checkpoints"].append({"seconds": time.perf_counter() - start, "report": report})
            if not last:
                same = same and ask(trigger)[1] == expected
                rekindle("rm", image)
    finally:
        program.end()
    row["sizes"] = rekindle.json("inspect", image)["sizes"]
    # What the program has written may only have grown since.
    written = program.log.stat().st_size
    for n in range(restores):
        os.truncate(program.log, written)
        restored = f"{name}-pid-{n}"
        start = time.perf_counter()
        report = rekindle.json("restore", image, "--name", restored, "-d")
        running = time.perf_counter() - start
        _, answer = ask(trigger)
        first = time.perf_counter() - start
        again, _ = ask(trigger)
        same = same and answer == expected
        row["restores"].append({"running_s": running, "first_answer_s": first, "warm_answer_s": again, "report": report})
        rekindle("kill", restored)
    if then:
        os.truncate(program.log, written)
        more = then(image, trigger, expected)
        row, same = {**row, **more}, same and more.get("same", True)
    rekindle("rm", image)
    row["first_answer_s"] = statistics.median(one["first_answer_s"] for one in row["restores"])
    row["checkpoint_s"] = statistics.median(one["seconds"] for one in row["checkpoints"])
    return {**row, "ok": same}
