"""Images of programs that go on where the GPU has no room for a copy of their memory, since another process has the rest of it: a
service that writes to little of what it has, and a training run that writes to nearly all; and of a service that has most of a GPU
itself. Each with its memory written ahead, and standing still until it is written; and the training run with what has no copy written
in the stop, in place of after it, and without what its allocator has free."""

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

from cut import gone_on, lost_by, rows, wait_for_step
from images import ask
from programs import Native, python_program, wait_for
from rekindle import Rekindle

AHEAD, AT_ONCE, LEFT_OUT = "ahead", "at once", "left out"
# What torch has free would make room enough.
KEPT = "gpu.unused=keep"
WAYS = {
    AHEAD: {"REKINDLE_TUNING": KEPT},
    AT_ONCE: {"REKINDLE_TUNING": f"{KEPT},gpu.guard=off"},
    "still": {"REKINDLE_TUNING": f"{KEPT},gpu.shadow=off"},
    LEFT_OUT: {},
}
SERVED, TRAINED = "llm", "gpt2-train"
# It needs a GPU of 140 GB.
LARGE, LARGE_NEEDS = "llm-120", 140e9
SERVICES = {"service": SERVED, "large service": LARGE}
# What is left of the GPU: less than a sixteenth is left to others by a copy.
LEFT = 0.08
IMAGES = 2
REQUESTS = 60
WARM, BASE = 6, 20


def total_memory():
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) << 20


@contextlib.contextmanager
def filled(work):
    """Another process has the rest of the GPU."""
    fill = Path(__file__).resolve().parent / "fill.py"
    process = Native([sys.executable, str(fill), str(int(total_memory() * LEFT))], work / "fill.log")
    wait_for(lambda: any(line.startswith("ready") for line in process.lines()) or process.process.poll() is not None, 60, "a full GPU")
    if process.process.poll() is not None:
        raise RuntimeError(" | ".join(process.lines()))
    try:
        yield
    finally:
        process.end()


def take(rekindle, name, number):
    """An image, which is removed before the next: none finds the other's chunks."""
    if number:
        rekindle("rmi", f"{name}-{number - 1}")
    return rekindle.json("checkpoint", name, "--to", f"{name}-{number}", "--leave-running")


def service(rekindle, program, way, work):
    """Requests one after the other, without an image and while images are taken."""
    name, trigger = f"{program}-{way}", work / f"room-{program}-{way}-ask"
    rekindle.run(name, *python_program(program, "--serve", trigger))
    wait_for(lambda: "ready" in rekindle.lines(name) or not rekindle.sandbox(name)["pid"], 120, name)
    with filled(work) if program == SERVED else contextlib.nullcontext():
        quiet = [ask(trigger)[0] for _ in range(REQUESTS)]
        reports, problems, over = [], [], threading.Event()

        def images():
            try:
                for number in range(IMAGES):
                    reports.append(take(rekindle, name, number))
            except Exception as error:
                problems.append(error)
            over.set()

        taker = threading.Thread(target=images)
        taker.start()
        busy, answers = [], []
        while not over.is_set():
            seconds, answer = ask(trigger)
            busy.append(seconds)
            answers.append(answer)
        taker.join()
        answers += [ask(trigger)[1] for _ in range(3)]
        rekindle("kill", name)
        if problems:
            raise problems[0]
    restored = rekindle.restore(f"{name}-{IMAGES - 1}", f"{name}-restored")
    again = [ask(trigger)[1] for _ in range(3)]
    rekindle("kill", f"{name}-restored")
    rekindle("rmi", f"{name}-{IMAGES - 1}")
    # It goes on where the program was at the cut.
    first = answers.index(again[0]) if again[0] in answers else len(answers)
    common = list(zip(again, answers[first:]))
    return {
        "ok": len(common) > 0 and all(one == other for one, other in common),
        "answers_compared": len(common),
        "quiet_s": quiet,
        "busy_s": busy,
        **figures(reports),
        "restore": restored,
    }


def training(rekindle, way, work):
    """How long each image stops it, what steps lose, and whether the last comes back as it was."""
    name, file = f"training-{way}", work / f"room-train-{way}"
    rekindle.run(name, *python_program(TRAINED, "--train", file))
    wait_for_step(rekindle, name, file, WARM)
    with filled(work):
        begun = len(rows(file)) + 1
        wait_for_step(rekindle, name, file, begun + BASE)
        base = rows(file)[begun : begun + BASE]
        step = (base[-1][1] - base[0][1]) / (len(base) - 1)
        reports = []
        for number in range(IMAGES):
            wait_for_step(rekindle, name, file, len(rows(file)) + 2)
            reports.append({"at": time.time(), **take(rekindle, name, number), "done": time.time()})
        wait_for_step(rekindle, name, file, len(rows(file)) + 3)
        seen = rows(file)
        rekindle("kill", name)
    return {
        **gone_on(rekindle, name, f"{name}-{IMAGES - 1}", file),
        "step_s": step,
        "lost_s": [lost_by(seen, report, step) for report in reports],
        **figures(reports),
    }


def figures(reports):
    memory = [report["memory"][0] if report.get("memory") else None for report in reports]
    return {"stopped_s": [report["stopped_us"] / 1e6 for report in reports], "memory": memory, "checkpoints": reports}


def measure(binaries, memory, work, note, only):
    """`note(name, rekindle, function)` keeps each row."""
    for way, environment in WAYS.items():
        with Rekindle(gpu="nvidia", binaries=binaries, state=memory / f"room-{way}", **environment) as rekindle:
            # A service writes to so little that there is room for a copy of it, and has little free.
            for what, program in ({} if way in (AT_ONCE, LEFT_OUT) else SERVICES).items():
                if program in (only or [program]) and (program == SERVED or total_memory() >= LARGE_NEEDS):
                    note(f"{what}, {way}", rekindle, lambda: service(rekindle, program, way, work))
            if TRAINED in (only or [TRAINED]):
                note(f"training, {way}", rekindle, lambda: training(rekindle, way, work))
