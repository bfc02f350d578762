"""A process of a program is killed in the middle of a checkpoint or a restore of it."""

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from interleavings import machine
from rekindle import PATIENCE, below

PROGRAM = Path(__file__).parent / "crew.py"
# What may be said of it.
SAID = [
    r"^rekindle: .* ended while it was to be (checkpointed|restored|put to sleep|woken)[^;]*$",
    r"process \d+.* ended while ",
    r"CRIU could not .*\b\d+ (was )?killed by (signal )?9",
    r"CRIU could not .*Task signaled with 9: Killed",
    # Before it was the driver's turn.
    r"could not restore process \d+: it is no CUDA program",
    # Before anything was begun.
    r"there is no process \d+ to be checkpointed",
    r"the sandbox .* is not running \(killed\)",
    r"the container .* is (exited|stopped), not running",
]
CHECKPOINT = ["checkpoint-begun", "quiesced", "detached", "pages-begun", "pages-taken", "frozen", "saved", "draining", "before-commit"]
CHECKPOINT += ["driver-locking", "driver-locked", "driver-checkpointed", "driver-restoring", "driver-unlocking", "in-image"]
RESTORE = ["restore-checked", "restore-vacant", "restore-complete", "restore-running"]


FAULTS = {"REKINDLE_FAULT": ",".join(f"{point}:hang" for point in CHECKPOINT + RESTORE)}


class Marks:
    """With FAULTS everybody hangs at the chosen point, and at no other."""

    def __init__(self, rekindle):
        self.rekindle = rekindle
        for point in CHECKPOINT + RESTORE:
            rekindle.let_go(point)

    def choose(self, point):
        self.rekindle.hold_again(point)

    def is_reached(self, point):
        return (self.rekindle.marks / point).exists()

    def let_go(self, point):
        self.rekindle.let_go(point)


@dataclass
class Told:
    """What has become of a command."""

    words: tuple
    code: int
    said: str
    took: float


class Command:
    def __init__(self, rekindle, words):
        self.rekindle, self.words, self.began = rekindle, tuple(map(str, words)), time.monotonic()
        self.child = subprocess.Popen(
            [rekindle.command, *self.words],
            env=rekindle.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def is_over(self):
        return self.child.poll() is not None

    def end(self):
        try:
            _, said = self.child.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            states = machine.states(self.rekindle)
            self.child.kill()
            raise AssertionError(f"{self.words} has not ended within {PATIENCE} s; {states}") from None
        return Told(self.words, self.child.returncode, said.strip(), time.monotonic() - self.began)


def words(children, threads, megabytes, gpu, wrong):
    return (sys.executable, str(PROGRAM), children, threads, megabytes, gpu, wrong)


def steps(root):
    """How far each process has come that lives, by its number."""
    names = [machine.read(pid, "comm").strip() for pid in machine.tree(root)]
    found = [re.fullmatch(r"(\d)/(\d):(\d+)", name) for name in names]
    return {int(match[1]): int(match[3]) for match in found if match}


def members(root):
    return [pid for pid in machine.tree(root) if re.match(r"\d/\d:", machine.read(pid, "comm"))]


def strike(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def whole(rekindle, root, expected):
    """How far each process has come, once those are there that should be; /proc may leave one out while another ends."""
    found = []

    def are_there():
        found[:] = [steps(root)]
        return set(found[0]) in expected or not machine.is_alive(root)

    rekindle.wait(are_there, f"the processes {expected} of {root}")
    assert set(found[0]) in expected, f"{found[0]} in place of {expected}"
    return found[0]


def go_on(rekindle, root, expected=None):
    """All that live; `expected`: whose numbers those should be."""
    before = whole(rekindle, root, [expected]) if expected else steps(root)
    assert before, f"none of {root} is there"

    def are_further():
        now = steps(root)
        return all(number in now and now[number] > step + 1 for number, step in before.items())

    rekindle.wait(are_further, f"all of {before} to go on, now {steps(root)}")


def check_told(told):
    """It worked, or says who ended."""
    if told.code == 0:
        return
    assert told.code == 1 and "\n" not in told.said and told.said.startswith("rekindle: "), told
    assert any(re.search(sentence, told.said) for sentence in SAID), told


def unfinished(rekindle, roots, driver=None):
    """What is locked, held or half-done."""
    left, rows = [], rekindle.sandboxes()
    left += [row for row in rows if row["state"] not in ("running", "exited", "killed", "stopped", "failed", "asleep")]
    left += [row for row in rows if row["pid"] and not machine.is_alive(row["pid"])]
    known = set()
    for root in [*roots, *(row["pid"] for row in rows if row["pid"])]:
        for pid in machine.tree(root):
            known.add(pid)
            held = machine.held_by(pid)
            if held:
                left.append(f"process {pid} is held: {held}")
            if driver and driver.state(pid) not in (None, "running") and machine.is_alive(pid):
                left.append(f"process {pid} is {driver.state(pid)}")
    for pid, program in machine.processes_of(rekindle).items():
        if "swrk" in program or (str(PROGRAM) in program and pid not in known):
            left.append(f"process {pid}: {program}")
    count = sum(1 for row in rows if row["pid"])
    for place in ("driver", "dumps", "store/staging"):
        left += [str(path) for path, found in below(rekindle.state / place) if not stat.S_ISDIR(found.st_mode) or place == "dumps"]
    for place in (rekindle.state / "pages", rekindle.run_root / "run"):
        found = list(place.iterdir()) if place.is_dir() else []
        if len(found) > count:
            left.append(f"{place} has {found} for {count} sandboxes")
    if driver and driver.switch.read_text().strip() == "always":
        left.append("large pages are on")
    return left


def rest(rekindle, roots, driver=None):
    left = []

    def is_at_rest():
        left[:] = unfinished(rekindle, roots, driver)
        return not left

    try:
        rekindle.wait(is_at_rest, "rest")
    except TimeoutError:
        raise AssertionError(f"this stays: {left}") from None
