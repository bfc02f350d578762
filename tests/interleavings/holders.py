"""Whoever holds a program is killed in the middle of `checkpoint --stop`: CRIU, init, relay, helper, daemon, worker.

The program goes on with all that it had, or its image is there and continues it.
"""

import contextlib
import mmap
import os
import random
import statistics
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from interleavings import kills, machine, standin
from rekindle import CommandError

SOURCE = Path(__file__).parent / "sturdy.c"
COUNTS = 11
# How long a checkpoint may take that nobody knows, seconds.
GUESS = 0.3
# CRIU traces the program by one of these: a thread of init, or a process.
MODES = {
    "criu": ["sandbox", "pid"],
    "init": ["sandbox"],
    "daemon": ["sandbox", "pid"],
    "helper": ["driver"],
    "relay": ["container"],
    "worker": ["worker"],
}
KINDS = list(MODES)


def is_meant(kind, words):
    if kind == "criu":
        # It leaves nothing of its words but the first.
        return "/criu" in words[0]
    if kind == "daemon":
        return words[0].endswith("rekindled") and words[1:2] == ["--background"]
    argument = {"init": "sandbox-init", "relay": "criu-relay", "helper": "driver-helper", "worker": "worker"}[kind]
    return words[1:2] == [argument]


def build(directory):
    program = Path(directory) / "sturdy"
    subprocess.run(["cc", "-static", "-O1", "-pthread", "-o", program, SOURCE], check=True)
    return program


class Sturdy:
    """How far the threads of tests/interleavings/sturdy.c have come."""

    def __init__(self, program, directory):
        self.path, self.wrong = Path(directory) / "progress", Path(directory) / "wrong"
        self.path.write_bytes(bytes(4096))
        self.words = (program, self.path, self.wrong)
        with self.path.open("r+b") as file:
            self.counts = mmap.mmap(file.fileno(), 4096)

    def steps(self, _):
        return dict(enumerate(struct.unpack(f"{COUNTS}Q", self.counts[: 8 * COUNTS])))

    def is_ready(self, _):
        return all(self.steps(None).values())


class Crew:
    """The processes of tests/interleavings/crew.py."""

    def __init__(self, gpu, directory):
        self.wrong = Path(directory) / "wrong"
        self.words = kills.words(1, 2, 1, gpu, self.wrong)

    def steps(self, root):
        return kills.steps(root)

    def is_ready(self, root):
        return len(self.steps(root)) == 2


@dataclass
class Outcome:
    """What a round has come to."""

    mode: str
    # None if nobody was there to be killed.
    victim: int | None
    after: float
    point: str
    code: int
    said: str
    image: bool
    alive: bool
    problem: str | None = None
    wrong: str = ""

    @property
    def is_lost(self):
        return not self.image and not self.alive

    @property
    def word(self):
        return {(True, True): "both", (True, False): "image", (False, True): "goes on", (False, False): "neither"}[self.image, self.alive]


class Scene:
    def __init__(self, kind, seed, rekindle, program=None, driver=None, pods=None, mode=None):
        self.kind, self.seed, self.rekindle, self.driver, self.pods = kind, seed, rekindle, driver, pods
        self.modes = [mode] if mode else MODES[kind]
        self.program, self.marks = program, kills.Marks(rekindle)
        self.rng = random.Random(f"{kind} {seed}")
        self.native, self.name, self.mode, self.number, self.took = None, None, None, 0, []
        self.work = None

    # --- the program

    def start(self):
        self.number += 1
        self.mode, self.name = self.rng.choice(self.modes), f"{os.getpid()}-{self.number}"
        directory = self.rekindle.root / self.name
        directory.mkdir()
        gpu = {"driver": "all", "worker": "root", "container": "none"}.get(self.mode)
        self.work = Crew(gpu, directory) if gpu else Sturdy(self.program, directory)
        if self.mode == "pid":
            with (self.rekindle.root / "errors").open("a") as errors:
                null = subprocess.DEVNULL
                self.native = subprocess.Popen([*map(str, self.work.words)], stdin=null, stdout=null, stderr=errors, start_new_session=True)
        elif self.mode == "container":
            self.pods.start(self.name, self.work.words)
        else:
            more = ["--mode", "driver"] if self.mode == "driver" else ["--gpu", "emulated"]
            self.rekindle("run", "-d", *more, "--name", self.name, "--", *self.work.words)
        self.rekindle.wait(lambda: self.work.is_ready(self.root()), "the program")

    def root(self):
        if self.mode == "container":
            return self.pods.root(self.name)
        if self.native:
            return self.native.pid if self.native.poll() is None else 0
        row = self.row()
        return row["pid"] if row and row["pid"] and machine.is_alive(row["pid"]) else 0

    def row(self):
        return next((row for row in self.rekindle.sandboxes() if row["name"] == self.name), None)

    def forget(self):
        if self.native:
            for pid in machine.tree(self.native.pid):
                kills.strike(pid)
            self.native.wait()
        elif self.mode == "container":
            self.pods.remove(self.name)
        elif self.name and self.root():
            self.rekindle("kill", "--signal", "9", self.name, check=False)
            self.rekindle.wait(lambda: not self.root(), "the end of a program")
        self.native, self.name, self.work = None, None, None

    # --- a round

    def take(self):
        """One checkpoint with one kill in it."""
        if not self.work:
            self.start()
        root = self.root()
        who = {"pid": ("--pid", root), "container": ("--container", self.name)}.get(self.mode, (self.name,))
        if self.mode == "pid" and not self.native:
            who = (self.name,)
        image = f"i{self.number}"
        how = self.rng.choice(["delay", "there", "there", "there", "point"])
        point = self.rng.choice(self.points()) if how == "point" else None
        usual = statistics.median(self.took[-20:]) if self.took else GUESS
        # Of one that is there for a part of the time alone, from when it is.
        after = self.rng.uniform(0, 1.05) * usual * (0.5 if how == "there" else 1)
        if point:
            self.marks.choose(point)
        standing, self.before = self.roots(root), machine.pids()
        began = time.monotonic()
        running = kills.Command(self.rekindle, ("checkpoint", *who, "--to", image, "--stop"))
        victim = None
        try:
            if point:
                while not running.is_over() and not self.marks.is_reached(point):
                    time.sleep(0.0005)
                after = self.rng.choice([0, 0.002, 0.02]) * self.rng.random()
                time.sleep(after)
            if how == "there":
                while not running.is_over() and not self.victims(standing, running):
                    time.sleep(0.0002)
                began = time.monotonic()
            while not point and not running.is_over() and time.monotonic() - began < after:
                time.sleep(0.0003)
            victim = self.strike(standing, running)
        finally:
            if point:
                self.marks.let_go(point)
        told = running.end()
        if victim is None and told.code == 0 and not point:
            self.took.append(told.took)
        return self.judge(root, image, victim, after, point, told)

    def roots(self, root):
        """Below which the victims are: found once, since looking through all of /proc takes as long as a checkpoint."""
        known = machine.processes_of(self.rekindle)
        return [pid for pid, words in known.items() if len(words) > 1 and ("rekindled" in words[0] or "sandbox-init" in words)] + [root]

    def points(self):
        if self.kind == "relay":
            return ["pages-begun", "pages-taken"]
        return [point for point in kills.CHECKPOINT if self.mode in ("driver", "pid") or not point.startswith("driver-")]

    def victims(self, standing, running):
        if self.kind == "relay":
            # The runtime's child and not ours: one of those that are there since, and has our place among its words.
            found = machine.pids() - self.before
            found = {pid for pid in found if machine.is_of(self.rekindle, machine.read(pid, "cmdline"))}
        else:
            found = {pid for root in [*standing, running.child.pid] for pid in machine.tree(root)}
        chosen = [pid for pid in sorted(found) if is_meant(self.kind, machine.read(pid, "cmdline").split("\0"))]
        if self.kind == "init":
            # The first process of the sandbox's namespace ends with the program, by the kernel's rule: it is no victim here.
            chosen = [pid for pid in chosen if machine.status(pid, "NSpid").split()[-1] != "1"]
        return chosen

    def strike(self, standing, running):
        chosen = self.victims(standing, running)
        if not chosen or running.is_over():
            return None
        if self.kind == "worker":
            # One that waits in the pool is nobody's.
            chosen = [pid for pid in chosen if "/run/" in machine.read(pid, "cmdline")] or chosen
        victim = self.rng.choice(chosen)
        kills.strike(victim)
        return victim

    def judge(self, root, image, victim, after, point, told):
        rekindle = self.rekindle
        # A daemon begins, if need be, and mends what one before it has left.
        there = {row["name"] for row in rekindle.json("images")["images"]}
        rekindle.wait(lambda: not self.is_under_way(image, root), "the end of the checkpoint")
        there = {row["name"] for row in rekindle.json("images")["images"]}
        row = self.row()
        outcome = Outcome(
            self.mode,
            victim,
            round(after, 4),
            point or "",
            told.code,
            told.said,
            image in there,
            self.root() == root,
            row["problem"] if row else None,
        )
        if outcome.alive and not (outcome.image and told.code == 0):
            outcome.wrong += self.goes_on()
        # Then there is nothing more to take.
        is_gpu_lost = self.kind == "worker" and row and row["problem"]
        if outcome.image:
            self.forget_ended()
            outcome.wrong += self.bring_back(image, outcome.alive)
        elif not outcome.alive or is_gpu_lost:
            self.forget()
        return outcome

    def is_under_way(self, image, root):
        """Whether something is still to be undone or finished."""
        row = self.row()
        if row and row["state"] not in ("running", "exited", "killed", "stopped", "failed"):
            return True
        held = [machine.held_by(pid) for pid in machine.tree(root)] if machine.is_alive(root) else []
        return any(held) or (not machine.is_alive(root) and bool(row and row["pid"] == root))

    def goes_on(self):
        """What is wrong with a program that should go on; nothing, mostly."""
        root = self.root()
        before = self.work.steps(root)

        def are_further():
            now = self.work.steps(root)
            return all(now.get(number, 0) > step + 1 for number, step in before.items())

        try:
            self.rekindle.wait(are_further, "progress")
        except TimeoutError:
            return f"not all go on: {before}, {self.work.steps(root)}; "
        return self.found_wrong()

    def found_wrong(self):
        if not self.work.wrong.exists() or self.kind == "worker":
            return ""
        text = self.work.wrong.read_text()
        self.work.wrong.unlink()
        return text[:600]

    def forget_ended(self):
        """Of the program whose image is there: it goes on from that."""
        work, mode = self.work, self.mode
        self.forget()
        self.work, self.mode = work, mode

    def bring_back(self, image, went_on):
        """What is wrong with the program that an image gives; nothing, mostly."""
        self.number += 1
        self.name = f"{os.getpid()}-{self.number}"
        try:
            self.rekindle("restore", image, "--name", self.name, *([] if self.mode == "container" else ["-d"]))
        except CommandError as error:
            self.forget()
            # One that went on beside its image has written to the file in which it tells how far it is.
            return "" if went_on and "which the program used, has changed" in str(error) else str(error)
        wrong = self.goes_on()
        self.rekindle("rmi", image, check=False)
        if self.mode == "container" or wrong or self.number % 8 == 0:
            self.forget()
            self.rekindle("rmi", image, check=False)
        return wrong

    def end(self):
        with contextlib.suppress(CommandError, OSError):
            self.forget()


def environment(kind):
    """With what a daemon is to be started whose holders are killed, and what must live as long."""
    if kind not in ("helper", "relay"):
        return {**kills.FAULTS}, None, None
    directory, driver = standin.fresh(1 << 16)
    return {**kills.FAULTS, **driver.environment}, directory, driver
