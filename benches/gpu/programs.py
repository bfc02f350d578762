"""The commands of the workloads, and what their lines say."""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKLOADS = [
    "hello",
    "resnet152",
    "bert-base",
    "opt-350m",
    "gpt2-large",
    "gpt2-train",
    "cuda-graph",
    "torch-compile",
    "fft",
    "profiler",
    "sdpa-bf16",
    "expandable-segments",
    "malloc-async",
    "pinned-async",
    "dataloader",
    "trainer",
    "timm-train",
    "cupy",
    "jax",
    "nvcc-static",
]


def python_program(name, *options):
    return [sys.executable, str(HERE / "workloads.py"), name, *map(str, options)]


def served_program(name, trigger):
    """What follows a comma tells apart programs that are the same but for their variables."""
    return python_program(name.split(",")[0], "--serve", trigger)


def label(name):
    """The name as files and images may have it."""
    return name.replace(", ", "-").replace(" ", "-")


def steps_program(name, work, steps, pause):
    if name != "nvcc-static":
        return python_program(name, "--steps", steps, "--pause", pause)
    program = work / "static"
    if not program.exists():
        subprocess.run(["nvcc", "-O2", "-arch=native", "-cudart", "static", "-o", str(program), str(HERE / "static.cu")], check=True)
    return [str(program), str(steps), str(pause)]


def start_service(rekindle, label, name, trigger):
    """Starts a service, unless it runs already, and waits until it is ready."""
    if not any(row["name"] == label and row["pid"] for row in rekindle.sandboxes()):
        rekindle.run(label, *python_program(name, "--serve", trigger))
    wait_for(lambda: "ready" in rekindle.lines(label) or not rekindle.sandbox(label)["pid"], 120, f"sandboxed {name}")


def steps_of(lines):
    """`step I DIGEST` of each line."""
    return {int(words[1]): words[2] for words in (line.split() for line in lines) if len(words) == 3 and words[0] == "step"}


def wait_for(condition, limit, what):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"after {limit:.0f} s still waiting for {what}")
        time.sleep(0.02)


class Native:
    """A program without Rekindle, its lines in a file."""

    def __init__(self, command, log, **options):
        self.log = Path(log)
        with open(self.log, "w") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, **options)

    def lines(self):
        return self.log.read_text().splitlines()

    def wait_ready(self, limit=120):
        wait_for(lambda: "ready" in self.lines() or self.process.poll() is not None, limit, "the native program")
        if self.process.poll() is not None:
            raise RuntimeError(f"the native program ended: {' | '.join(self.lines()[-4:])}")

    def end(self):
        self.process.kill()
        self.process.wait()


def resident(pids):
    """Proportional resident bytes of processes and all their descendants."""
    total, queue = 0, list(pids)
    while queue:
        pid = queue.pop()
        try:
            total += next(int(line.split()[1]) for line in open(f"/proc/{pid}/smaps_rollup") if line.startswith("Pss:")) * 1024
            for task in os.listdir(f"/proc/{pid}/task"):
                queue += [int(child) for child in open(f"/proc/{pid}/task/{task}/children").read().split()]
        except OSError:
            pass
    return total
