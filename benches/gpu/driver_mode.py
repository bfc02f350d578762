"""Driver mode: a program that was started without Rekindle, taken by `checkpoint --pid` and brought back; then the same
by the driver's own checkpoint with CRIU alone (`baseline`), image in the same memory.
"""

import contextlib
import os
import statistics
import time

import baseline
from images import answers, ask
from programs import Native, label, python_program, wait_for
from rekindle import CommandError


def start(name, work, copies=1, **variables):
    """The program, `copies` times for either way: they take long to start, and not longer beside each other."""
    return [tuple(baseline.start(name, work, f"{way}-{n}", **variables) for way in ("pid", "driver")) for n in range(copies)]


def settle(pairs, limit=150):
    """Waits until all are up: what starts takes processors from what is measured."""
    for program, _ in (started for pair in pairs for started in pair):
        # One that does not come up is told of where it is measured.
        with contextlib.suppress(RuntimeError, TimeoutError):
            program.wait_ready(limit)


def end(pairs):
    """All that were started, whatever became of them."""
    for program, _ in (started for pair in pairs for started in pair):
        program.end()


# Checkpoints and restores by Rekindle, restores by CRIU alone.
USUAL = (2, 3, 3)
# CRIU alone has the image and the program in memory at the same time: of what is large it brings nothing back where they do
# not fit with room to spare.
LARGE = (1, 2, 1 if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > 200e9 else 0)
# Programs of a kind, each of which is checkpointed and ended in either way.
COPIES = {"hello": 5, "resnet152": 5, "gpt2-large": 3, "train-large": 1}


def measure(rekindle, name, work, memory, started, counts=USUAL, then=None):
    """`then(row, image, trigger, answer)` does more with the image. Where several programs are given, all that is not about
    a checkpoint's speed is of the first."""
    ((ours, theirs), *others), (checkpoints, restores, rounds) = started, counts
    settle(started)
    more = []
    # They have ended when it is restored: contexts of others slow the driver down.
    for one, other in others:
        by_us = tried(lambda row, one=one: row.update(ok=True, rekindle=once(rekindle, name, *one)))
        by_them = tried(lambda row, other=other: row.update(ok=True, criu=baseline.checkpoint(name, memory, other)))
        more.append(by_us | by_them | {"ok": by_us["ok"] and by_them["ok"]})
    row = tried(lambda row: by_rekindle(rekindle, name, *ours, checkpoints, restores, then, row))
    row["criu"] = tried(lambda row: baseline.measure(name, work, memory, rounds, theirs, row))
    row["others"] = more
    if name.startswith("train-"):
        row["gb_per_gpu"] = float(os.environ.get("REKINDLE_BENCH_GB", "25"))
    return {**row, "ok": row["ok"] and row["criu"]["ok"] and all(one["ok"] for one in more)}


def once(rekindle, name, program, trigger):
    """One checkpoint, after which the program has ended."""
    image = f"{label(name)}-once"
    try:
        program.wait_ready()
        ask(trigger)
        start = time.perf_counter()
        report = rekindle.json("checkpoint", "--pid", program.process.pid, "--mode", "driver", "--to", image, "--stop")
        seconds = time.perf_counter() - start
        rekindle("rmi", image)
        return {"seconds": seconds, "report": report}
    finally:
        program.end()


# What the daemon may do with the machine's switch for large pages; `usual` is what it does by itself.
LARGE_PAGES = {"off": "off", "usual": None}


def with_large_pages(rekindle, word, name, work, memory, started):
    """A daemon has the environment that it was started with."""
    rekindle("shutdown", check=False)
    rekindle.environment.pop("REKINDLE_TUNING", None)
    rekindle.environment |= {"REKINDLE_TUNING": f"driver.huge-pages={word}"} if word else {}
    return measure(rekindle, name, work, memory, started, (2, 2, 1))


def tried(way):
    """One way that fails does not keep the other from being measured, and leaves what it has measured."""
    row = {"ok": False, "reached": "nothing"}
    try:
        way(row)
    except Exception as error:
        row |= {"ok": False, "error": str(error)[-1500:]}
    return row


def by_rekindle(rekindle, name, program, trigger, checkpoints, restores, then, row):
    image = f"{label(name)}-pid"
    row |= {"checkpoints": [], "restores": []}
    try:
        program.wait_ready()
        row["warm_answer_s"], expected = ask(trigger)
        row["reached"] = "ran"
        same, pid = True, program.process.pid
        for n in range(checkpoints):
            last = n == checkpoints - 1
            start = time.perf_counter()
            report = rekindle.json("checkpoint", "--pid", pid, "--mode", "driver", "--to", image, "--stop" if last else "--leave-running")
            row["checkpoints"].append({"seconds": time.perf_counter() - start, "report": report})
            if not last:
                row["reached"] = "went on"
                same = same and ask(trigger)[1] == expected
                rekindle("rmi", image)
    finally:
        program.end()
    row |= {"reached": "checkpointed", "sizes": rekindle.json("inspect", image)["sizes"]}
    row["checkpoint_s"] = statistics.median(one["seconds"] for one in row["checkpoints"])
    try:
        # What the program has written may only have grown since.
        written = program.log.stat().st_size
        for n in range(restores):
            os.truncate(program.log, written)
            restored = f"{image}-{n}"
            start = time.perf_counter()
            report = rekindle.json("restore", image, "--name", restored, "-d")
            running = time.perf_counter() - start
            _, answer = ask(trigger)
            first = time.perf_counter() - start
            again, _ = ask(trigger)
            same = same and answer == expected
            row["restores"].append({"running_s": running, "first_answer_s": first, "warm_answer_s": again, "report": report})
            row["reached"] = "restored"
            rekindle("kill", restored)
        if then:
            os.truncate(program.log, written)
            same = then(row, image, trigger, expected) and same
    finally:
        rekindle("rmi", image)
    row["first_answer_s"] = statistics.median(one["first_answer_s"] for one in row["restores"])
    row["ok"] = same


def refused(rekindle, work):
    """A checkpoint while a kernel runs that does not end in time: the program goes on to its answer."""
    trigger, wait = work / "busy-ask", 3
    program = Native(python_program("busy", "--serve", trigger), work / "busy.log", start_new_session=True)
    row = {"ok": False, "gpu_wait_s": wait, "went_on": False}
    try:
        program.wait_ready()
        began = time.perf_counter()
        trigger.touch()
        wait_for(lambda: not trigger.exists(), 10, "the program to take the request")
        time.sleep(0.5)
        start = time.perf_counter()
        try:
            rekindle("checkpoint", "--pid", program.process.pid, "--mode", "driver", "--to", "busy", "--stop", "--gpu-wait", wait)
            row["said"] = "nothing: it was taken"
        except CommandError as error:
            row |= {"said": error.message, "refused_after_s": time.perf_counter() - start}
        wait_for(lambda: answers(trigger), 60, "the program's answer")
        row |= {"went_on": True, "answer_s": time.perf_counter() - began}
    finally:
        program.end()
    return {**row, "ok": "did not end within" in row["said"]}
