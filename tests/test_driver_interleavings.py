"""Driver mode in an order that nobody thought of: commands at the same time, on programs with several processes, while
parts of Rekindle and of the programs are killed and the driver fails.

Whatever happens, every program goes on with all that it held, unless it was told to end; nothing is left half-done; and
what is refused is refused in a sentence that is known.
"""

import contextlib
import os
import random
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from interleavings import machine, standin
from interleavings.rounds import REFUSED, do, play, rounds, seeds
from rekindle import Rekindle, below

PROGRAM = Path(__file__).parent / "interleavings/tree.py"
NAMES, IMAGES = ("a", "b", "c"), ("v", "w", "x", "y", "z")
# So many are left for a round, so that some have a name that is free.
MOST_IMAGES = 3
# So many programs that were started without Rekindle are there when a round begins.
NATIVE = 2
# How long a step of the driver may take that hangs, seconds.
STEP = 4
# A root that starts another program waits so for that to begin, for long where no processor is free.
STARTS_ANOTHER = "the program cannot be dumped: thread .* is in uninterruptible sleep"
DRIVER_REFUSED = REFUSED + [
    STARTS_ANOTHER,
    r"there is no process \d+ to be checkpointed",
    r"process \d+ belongs to the sandbox .*; checkpoint it by that name",
    r"process \d+ is being checkpointed just now; try again",
    # What the rounds do to it.
    r"process \d+ ended while (it was to be checkpointed|the driver was to \w+ it)",
    "the connection to the daemon was lost",
    r"the driver could not (lock|checkpoint|restore|unlock) process \d+: (.*as planned|afterwards it is \w+, expected \w+)",
    rf"the driver did not (lock|checkpoint|restore|unlock) process \d+ within ({STEP}|15) s",
    "the driver helper ended while it was to .*; its log: ",
    "CRIU could not (dump|restore) the program: ",
]


def is_of(outcome, program):
    """Whether the command was about this program; killed may be others than programs."""
    words = [*map(str, outcome.arguments), ""]
    return isinstance(program, Program) and (program.name == words[1] or words[1:3] == ["--pid", str(program.pid)])


@dataclass(frozen=True)
class Program:
    pid: int
    began: int
    # None of one that was started without Rekindle.
    name: str | None = None

    def is_alive(self):
        return machine.is_alive(self.pid) and machine.began(self.pid) == self.began


class Scene:
    def __init__(self, seed, rekindle, driver):
        self.rng, self.rekindle, self.driver = random.Random(seed), rekindle, driver
        self.wrong = rekindle.root / "wrong"
        self.natives, self.children = [], []
        self.fault = None

    # --- programs

    def words(self):
        return (sys.executable, str(PROGRAM), str(self.rng.randrange(1000)), str(self.wrong))

    def start_native(self):
        environment = dict(os.environ, **self.driver.environment)
        child = subprocess.Popen(
            self.words(),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.rekindle.root / "errors").open("a"),
            # A session that began outside of this pid namespace is none that CRIU can take.
            start_new_session=self.rng.random() < 0.5 or os.getsid(0) == 0,
        )
        self.children.append(child)
        self.natives.append(Program(child.pid, machine.began(child.pid)))
        self.whole(self.natives[-1])

    def programs(self):
        """All that live."""
        for child in self.children:
            child.poll()
        self.natives = [program for program in self.natives if program.is_alive()]
        boxes = [Program(row["pid"], machine.began(row["pid"]), row["name"]) for row in self.rekindle.sandboxes() if row["pid"]]
        return self.natives + [program for program in boxes if program.began]

    def steps(self, program):
        """How far each process of a program has come; None if not all are there."""
        names = [machine.read(pid, "comm").strip() for pid in machine.tree(program.pid)]
        shown = [match for match in (re.fullmatch(r"(\d)/(\d):(\d+)", name) for name in names) if match]
        steps = {int(match[1]): int(match[3]) for match in shown}
        return steps if shown and len(steps) == int(shown[0][2]) else None

    def whole(self, program):
        """How far each process has come once all are there; /proc may leave one out while another ends."""
        found = []

        def is_whole():
            found[:] = [self.steps(program)]
            return found[0] or not program.is_alive()

        self.rekindle.wait(is_whole, f"all of {program}")
        return found[0]

    # --- a round

    def begin(self, number):
        while len(self.natives) < NATIVE:
            self.start_native()
        if number == 0:
            self.rekindle("run", "-d", "--mode", "driver", "--name", NAMES[0], "--", *self.words())
            take = ("checkpoint", "--pid", self.natives[0].pid, "--to", IMAGES[0], "--leave-running")
            self.rekindle.wait(lambda: do(self.rekindle, take, [STARTS_ANOTHER]).worked, "the first image")
        self.driver.reset()
        for image in self.rekindle.json("images")["images"][MOST_IMAGES:]:
            self.rekindle("rmi", image["name"])
        self.before = self.programs()
        for program in self.before:
            self.whole(program)
        self.images = {image["name"] for image in self.rekindle.json("images")["images"]}
        commands = [self.command() for _ in range(self.rng.choice([2, 2, 3]))]
        self.killed = set()
        self.fault = threading.Thread(target=self.rng.choice(self.faults()))
        self.fault.start()
        return commands

    def command(self):
        """One that makes sense, mostly."""
        rng = self.rng
        live = [program.name for program in self.before if program.name]
        there = lambda: rng.choice([*live * 3, *NAMES])
        free = lambda: rng.choice([*[name for name in NAMES if name not in live] * 6, *NAMES])
        made = lambda: rng.choice([*sorted(self.images) * 4, *IMAGES])
        new = lambda: rng.choice([*[image for image in IMAGES if image not in self.images] * 4, *IMAGES])
        after = lambda: rng.choice(["--leave-running", "--stop"])
        take_pid = lambda: ("checkpoint", "--pid", rng.choice([*self.natives * 8, *self.before]).pid, "--to", new(), after())
        take = lambda: ("checkpoint", there(), "--to", new(), after())
        restore = lambda: ("restore", made(), "--name", free(), "-d")
        run = lambda: ("run", "-d", "--mode", "driver", "--name", free(), "--", *self.words())
        kill = lambda: ("kill", there())
        others = lambda: rng.choice([("rmi", made()), ("inspect", made()), ("verify", made()), ("ps",)])
        return rng.choice([take_pid, take_pid, take, take, restore, restore, restore, run, kill, others, others])()

    def faults(self):
        """What may happen beside the commands; or nothing does."""
        rng = self.rng
        delay, victim = rng.uniform(0, 0.5), rng.choice(self.before)
        step = rng.choice(["lock", "checkpoint", "restore", "unlock"])
        action = rng.choice(["fail", "lie", "hang", "kill", "kill-after"])
        daemon = lambda words: words[0].endswith("rekindled") and words[1:2] == ["--background"]
        helper = lambda words: words[1:2] == ["driver-helper"]
        # It leaves nothing of its words but the first.
        criu = lambda words: "/criu" in words[0]

        def kill(who, is_meant):
            """A while after it is there."""
            began = time.monotonic()
            while time.monotonic() - began < 1:
                pids = [pid for pid, words in machine.processes_of(self.rekindle).items() if is_meant(words)]
                if pids:
                    time.sleep(delay)
                    self.strike(rng.choice(pids), who)
                    return

        def kill_one():
            time.sleep(delay)
            named = {pid: machine.read(pid, "comm") for pid in machine.tree(victim.pid)}
            # Another program that is being started still has the root's name.
            pids = [pid for pid, name in named.items() if name[1:2] == "/" and (pid == victim.pid or name[0] != "0")]
            if pids and victim.is_alive() and self.strike(rng.choice(pids), "program"):
                self.killed.add(victim)

        kinds = [
            lambda: kill("daemon", daemon),
            lambda: kill("helper", helper),
            lambda: kill("criu", criu),
            lambda: (kill("helper", helper), kill("daemon", daemon)),
            lambda: self.driver.plan(step, action, rng.choice([1, 1, 2])),
            kill_one,
        ]
        return [lambda: None] * 3 + kinds

    def strike(self, pid, who):
        """Whether it was there."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.killed.add(who)
        return True

    # --- and its end

    def check(self, outcomes):
        self.fault.join()
        self.driver.reset_plan()
        # A new daemon, if need be.
        self.rekindle.json("ps")
        maimed = self.remove_maimed(outcomes)
        self.rest()
        assert not self.wrong.exists(), self.wrong.read_text()
        now = self.programs()
        ended = [program for program in self.before if program not in now]
        images = {image["name"] for image in self.rekindle.json("images")["images"]}
        for program in ended:
            assert self.was_told_to_end(program, outcomes, images), f"{program} was lost; {self.killed}"
        for outcome in outcomes:
            words = outcome.arguments
            if outcome.worked and words[0] == "checkpoint":
                image = words[words.index("--to") + 1]
                removed = image in maimed or any(other.arguments == ("rmi", image) for other in outcomes)
                assert image in images or removed, f"the image of {words} is gone"
        self.go_on(now)
        assert not self.wrong.exists(), self.wrong.read_text()

    def remove_maimed(self, outcomes):
        """Removes images of a program that were taken while a process of it was killed, which may lack that and end themselves
        as it did, and what was restored from them."""
        maimed = {
            outcome.arguments[outcome.arguments.index("--to") + 1]
            for outcome in outcomes
            if outcome.worked and outcome.arguments[0] == "checkpoint" and any(is_of(outcome, victim) for victim in self.killed)
        }
        for outcome in outcomes:
            if outcome.worked and outcome.arguments[0] == "restore" and outcome.arguments[1] in maimed:
                self.rekindle("kill", outcome.arguments[3], check=False)
        for image in maimed:
            self.rekindle("rmi", image, check=False)
        return maimed

    def was_told_to_end(self, program, outcomes, images):
        if program in self.killed:
            return True
        for outcome in outcomes:
            words, refusal = outcome.arguments, outcome.refusal
            if words[0] == "kill" and is_of(outcome, program):
                return True
            if words[0] == "checkpoint" and is_of(outcome, program):
                # Nobody knows how far one has come whose daemon was killed.
                is_made = refusal and "connection to the daemon was lost" in refusal and images - self.images
                if "--stop" in words and (not refusal or is_made):
                    return True
        return False

    def go_on(self, programs):
        """All processes of each."""
        before = [(program, self.whole(program)) for program in programs]
        for program, steps in before:
            assert steps, f"{program} is not whole: {[machine.read(pid, 'comm').strip() for pid in machine.tree(program.pid)]}"

        def are_further():
            for program, steps in before:
                now = self.steps(program)
                if not now or any(now[number] <= step + 1 for number, step in steps.items()):
                    return False
            return True

        self.rekindle.wait(are_further, f"all of {programs} to go on")

    def rest(self):
        """Until nothing is locked, held or half-done any more."""
        left = []

        def is_at_rest():
            left[:] = self.unfinished()
            return not left

        try:
            self.rekindle.wait(is_at_rest, "rest")
        except TimeoutError:
            raise AssertionError(f"this stays: {left}") from None

    def unfinished(self):
        left, programs = [], self.programs()
        rows = self.rekindle.sandboxes()
        left += [row for row in rows if row["state"] not in ("running", "exited", "killed", "stopped", "failed")]
        left += [row for row in rows if row["pid"] and not machine.is_alive(row["pid"])]
        # The others of a tree notice it at their next step.
        left += [victim for victim in self.killed if isinstance(victim, Program) and victim.is_alive()]
        known = set()
        for program in programs:
            for pid in machine.tree(program.pid):
                known.add(pid)
                state, held = self.driver.state(pid), machine.held_by(pid)
                if state not in (None, "running") and machine.is_alive(pid):
                    left.append(f"process {pid} of {program} is {state}")
                if held:
                    left.append(f"process {pid} of {program} is held: {held}")
        inits = 0
        for pid, words in machine.processes_of(self.rekindle).items():
            inits += words[1:2] == ["sandbox-init"]
            if "swrk" in words or (str(PROGRAM) in words and pid not in known):
                left.append(f"process {pid}: {words}")
        live = {row["id"] for row in rows if row["pid"]} if rows and "id" in rows[0] else None
        count = sum(1 for row in rows if row["pid"])
        state, runs = self.rekindle.state, self.rekindle.run_root
        for place in ("driver", "dumps", "store/staging"):
            left += [str(path) for path, found in below(state / place) if not stat.S_ISDIR(found.st_mode) or place == "dumps"]
        for place in (state / "pages", runs / "run"):
            found = list(place.iterdir())
            if len(found) > count or (live is not None and any(path.name not in live for path in found)):
                left.append(f"{place} has {found} for {count} sandboxes")
        mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.rekindle.root) in line or str(runs) in line]
        left += mounts
        if self.driver.switch.read_text().strip() == "always":
            left.append("large pages are on")
        return left

    def restore_all(self):
        """Every image that was said to be made answers right."""
        for image in self.rekindle.json("images")["images"]:
            self.rekindle("restore", image["name"], "--name", "last", "-d")
            (program,) = [program for program in self.programs() if program.name == "last"]
            self.go_on([program])
            self.rekindle("kill", "last")
        assert not self.wrong.exists(), self.wrong.read_text()

    def end(self):
        for child in self.children:
            for pid in machine.tree(child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            child.kill()
            child.wait()


@pytest.mark.parametrize("seed", seeds("1 2"))
def test_driver_mode_in_any_order(seed):
    """With every second seed what the driver keeps is large enough for page files of its own."""
    directory, driver = standin.fresh(3 << 20 if seed % 2 else 1 << 16, STEP)
    with directory, Rekindle(**driver.environment) as rekindle:
        scene = Scene(seed, rekindle, driver)
        try:
            play(rekindle, DRIVER_REFUSED, scene.begin, scene.check, rounds(6))
            scene.restore_all()
        finally:
            scene.end()
