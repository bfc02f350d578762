"""Programs do not see the loss of their workers: those are killed at any moment, and what the programs compute stays right."""

import os
import random
import signal
import sys
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle
from test_features import ALONE, FEATURES

WORK = Path(__file__).parent / "mend" / "work.py"
KINDS = ["kernels", "uploads", "waits", "streams", "pinned_memory", "module_globals", "allocates", "graphs"]


class Program:
    """One that is to go on."""

    def __init__(self, rekindle, *kinds, name="work", options=("--mend",)):
        self.rekindle, self.name, self.place = rekindle, name, rekindle.root / name
        self.place.mkdir()
        self.rekindle("run", "-d", "--name", name, "--gpu", rekindle.gpu, *options, "--", sys.executable, WORK, self.place, *kinds)
        lines = rekindle.wait_lines(name, 1)
        assert lines == ["ready"], lines

    def row(self):
        return self.rekindle.sandbox(self.name)

    def mending(self):
        return self.row()["mending"]

    def is_on(self):
        return self.mending()["on"]

    def on(self):
        """Until its worker's loss would be mended."""
        self.rekindle.wait(self.is_on, "mending to be on")

    def lose(self):
        """Its worker is killed: until another one is in its place."""
        before = self.mending()["mended"]
        self.kill()
        self.mended(before + 1)

    def kill(self):
        (worker,) = self.row()["workers"]
        os.kill(worker, signal.SIGKILL)

    def mended(self, times):
        def is_mended():
            row = self.row()
            assert row["problem"] is None, row["problem"]
            assert row["pid"], self.rekindle.lines(self.name)
            return row["mending"]["mended"] >= times and row["state"] == "running"

        self.rekindle.wait(is_mended, f"{self.name} to be mended {times} times")

    def steps(self):
        try:
            return int((self.place / "steps").read_text() or 0)
        except FileNotFoundError:
            return 0

    def goes_on(self):
        """Until it has come farther."""
        before = self.steps()
        self.rekindle.wait(lambda: self.steps() > before or not self.row()["pid"], f"{self.name} to come farther")

    def pause(self):
        (self.place / "pause").touch()

    def ends(self):
        self.goes_on()
        (self.place / "stop").touch()
        lines = self.rekindle.wait_end(self.name)
        assert lines[-1].startswith("ok "), lines
        assert self.row()["exit_code"] == 0


@pytest.mark.parametrize("name", ALONE)
def test_features_at_rest_go_on(rekindle, name):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--mend", "--name", name, "--gpu", rekindle.gpu, "--", sys.executable, FEATURES / f"{name}.py", go)
    assert rekindle.wait_lines(name, 1)[:1] == ["ready"], rekindle.lines(name)
    rekindle.wait(lambda: rekindle.sandbox(name)["mending"]["on"], "mending to be on")
    (worker,) = rekindle.sandbox(name)["workers"]
    os.kill(worker, signal.SIGKILL)
    rekindle.wait(lambda: rekindle.sandbox(name)["mending"]["mended"] == 1 or rekindle.sandbox(name)["problem"], "it to be mended")
    assert rekindle.sandbox(name)["problem"] is None
    go.touch()
    assert rekindle.wait_end(name) == ["ready", "ok"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_is_killed_while_it_works(rekindle, kind):
    program = Program(rekindle, kind)
    for _ in range(3):
        program.goes_on()
        program.on()
        program.lose()
    program.ends()
