"""A program on two GPUs that use each other's memory, and what it prints where nothing disturbs it."""

import os
import signal
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "several_gpus/exchange.py"


class Mended:
    """A program whose worker is killed."""

    def __init__(self, rekindle, name):
        self.rekindle, self.name = rekindle, name

    def row(self):
        return self.rekindle.sandbox(self.name)

    def kill_worker(self):
        (worker,) = self.row()["workers"]
        os.kill(worker, signal.SIGKILL)


class Exchange(Mended):
    def __init__(self, rekindle, gpu, *options, name="exchange"):
        super().__init__(rekindle, name)
        self.gpu, self.place = gpu, rekindle.root / name
        self.place.mkdir()
        rekindle("run", "-d", "--name", name, "--gpu", gpu, *options, "--", sys.executable, PROGRAM, self.place)
        lines = rekindle.wait_lines(name, 1)
        assert lines[:1] == ["ready"], lines

    def steps(self):
        try:
            return int((self.place / "steps").read_text() or 0)
        except FileNotFoundError:
            return 0

    def goes_on(self, steps=12):
        """Until it has come so much farther, or has ended."""
        before = self.steps()
        self.rekindle.wait(lambda: self.steps() >= before + steps or not self.row()["pid"], f"{self.name} to come farther")
        assert self.row()["pid"], self.rekindle.lines(self.name)[-3:]

    def ends(self, at=None):
        """What it has printed is, to the last bit, what it prints where nobody disturbs it. `at`: the node that it ends at."""
        (self.place / "stop").touch()
        node = at or self.rekindle
        lines = node.wait_end(self.name)
        assert lines[0] == "ready" and lines[-1] == "ok" and len(lines) > 2, lines[-3:]
        steps = lines[-2].split()[0]
        alone = node.root / f"{self.name}-alone"
        alone.mkdir()
        node("run", "-d", "--name", "alone", "--gpu", self.gpu, "--", sys.executable, PROGRAM, alone, steps)
        assert node.wait_end("alone") == lines
