"""Processes of programs are killed, as the kernel does where memory runs out, while they are checkpointed or restored.

Whenever it happens: the command ends; it says who ended, or has done what it was asked; what was not killed goes on and
can be checkpointed again; nothing stays held or half-done.
"""

import os
import random
import subprocess
import time

import pytest
from interleavings import kills, machine, pod, standin
from interleavings.kills import FAULTS, Command, Marks
from interleavings.rounds import rounds, seeds
from rekindle import PATIENCE, Rekindle


class Scene:
    """One mode: "sandbox", "driver" in a sandbox, or "pid" without one."""

    def __init__(self, mode, seed, rekindle, driver, marks):
        self.mode, self.rng, self.rekindle, self.driver, self.marks = mode, random.Random(f"{mode} {seed}"), rekindle, driver, marks
        self.wrong = rekindle.root / "wrong"
        self.native = None
        self.log = []

    # --- programs

    def start(self, megabytes=None):
        rng = self.rng
        gpu = "all" if self.mode != "sandbox" else rng.choice(["none", "root", "root"])
        if megabytes is None:
            megabytes = rng.choice([1, 1, 20, 100])
        words = kills.words(rng.choice([0, 1, 1, 2]), rng.choice([0, 3, 8]), megabytes, gpu, self.wrong)
        self.count = int(words[2]) + 1
        if self.mode == "pid":
            self.native = subprocess.Popen(
                list(map(str, words)),
                env=dict(os.environ, **self.driver.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=(self.rekindle.root / "errors").open("a"),
                start_new_session=True,
            )
        elif self.mode == "driver":
            self.rekindle("run", "-d", "--mode", "driver", "--name", "a", "--", *words)
        else:
            self.rekindle("run", "-d", "--gpu", "emulated", "--name", "a", "--", *words)
        self.rekindle.wait(lambda: len(kills.steps(self.root())) == self.count, "the program")

    def root(self):
        return self.native.pid if self.mode == "pid" else self.root_of("a")

    def root_of(self, name):
        return next((row["pid"] for row in self.rekindle.sandboxes() if row["name"] == name), 0)

    def is_there(self):
        if self.mode == "pid":
            return self.native is not None and self.native.poll() is None
        root = self.root_of("a")
        return bool(root and machine.is_alive(root))

    def checkpoint(self, image, after):
        who = ("--pid", self.root()) if self.mode == "pid" else ("a",)
        return ("checkpoint", *who, "--to", image, after)

    # --- killing

    def kill_in(self, command, members, points, wait_traced):
        """Kills one of what `members` gives at a moment of the command, and tells who that was."""
        rng = self.rng
        how = rng.choice(["delay", "traced", "point", "point"])
        point = rng.choice(points)
        if how == "point":
            self.marks.choose(point)
        running = Command(self.rekindle, command)
        victim = None
        try:
            if how == "delay":
                time.sleep(rng.uniform(0, 0.3))
            elif how == "traced":
                self.until(running, wait_traced)
                time.sleep(rng.choice([0, 0.001, 0.005, 0.02, 0.05]) * rng.random())
            else:
                self.until(running, lambda: self.marks.is_reached(point))
                time.sleep(rng.choice([0, 0, 0.05]))
            found = members()
            if found and not running.is_over():
                victim = rng.choice(found)
                kills.strike(victim)
                if how == "point":
                    time.sleep(rng.choice([0, 0, 0.02, 0.3]))
        finally:
            self.marks.let_go(point)
        told = running.end()
        self.log.append((how, point if how == "point" else "", victim, victim and found.index(victim), len(found), told))
        # One that was killed runs on until it has a processor to end on.
        self.rekindle.wait(lambda: not victim or not machine.is_alive(victim), "the end of who was killed")
        return victim, told

    def until(self, running, condition):
        while not running.is_over() and not condition():
            time.sleep(0.0005)

    # --- rounds

    def take(self):
        """A checkpoint with a kill in it."""
        if not self.is_there():
            self.start()
        rng, root = self.rng, self.root()
        pids = kills.members(root)
        numbers = {pid: int(machine.read(pid, "comm")[0]) for pid in pids}
        after = rng.choice(["--leave-running", "--stop"])
        is_traced = lambda: any(machine.status(pid, "TracerPid") not in ("", "0") for pid in pids)
        victim, told = self.kill_in(self.checkpoint("x", after), lambda: pids, kills.CHECKPOINT, is_traced)
        kills.check_told(told)
        if self.mode == "pid" and (victim == root or not told.code):
            if victim == root or after == "--stop":
                self.native.wait(PATIENCE)
        made = {image["name"] for image in self.rekindle.json("images")["images"]}
        assert ("x" in made) == (told.code == 0), (made, told)
        lives = victim != root and not (after == "--stop" and told.code == 0)
        self.rest()
        assert self.is_there() == lives, (lives, told)
        if lives:
            left = {number for pid, number in numbers.items() if pid != victim}
            kills.go_on(self.rekindle, self.root(), left)
            self.rekindle(*self.checkpoint("again", "--leave-running"))
            kills.go_on(self.rekindle, self.root(), left)
            self.rekindle("rm", "again")
        if told.code == 0:
            self.rekindle("restore", "x", "--name", "b", "-d")
            expected = [set(numbers.values()), set(numbers.values()) - {numbers.get(victim)}]
            kills.whole(self.rekindle, self.root_of("b"), expected)
            kills.go_on(self.rekindle, self.root_of("b"))
            self.rekindle("kill", "--signal", "9", "b")
            self.rekindle.wait(lambda: not self.root_of("b"), "the end of b")
            self.bring_back("x")
            self.rekindle("rm", "x")
        assert not self.wrong.exists(), self.wrong.read_text()

    def bring_back(self, image):
        """A restore with a kill in it."""
        before = set(machine.processes_of(self.rekindle))

        def fresh():
            words = machine.processes_of(self.rekindle)
            return [pid for pid, words in words.items() if pid not in before and (str(kills.PROGRAM) in words)]

        is_traced = lambda: any(machine.status(pid, "TracerPid") not in ("", "0") for pid in fresh())
        victim, told = self.kill_in(("restore", image, "--name", "b", "-d"), fresh, kills.RESTORE, is_traced)
        kills.check_told(told)
        self.rest()
        root = self.root_of("b")
        assert not root or told.code == 0, told
        if root and victim != root:
            kills.go_on(self.rekindle, root)
            self.rekindle("checkpoint", "b", "--to", "again", "--stop")
            self.rekindle("rm", "again")
        elif root:
            self.rekindle.wait(lambda: not self.root_of("b"), "the end of b")

    def rest(self):
        self.rekindle.wait(lambda: self.is_there() or not self.native or self.native.poll() is not None, "the end")
        kills.rest(self.rekindle, [self.native.pid] if self.native and self.native.poll() is None else [], self.driver)

    def end(self):
        if self.native and self.native.poll() is None:
            for pid in machine.tree(self.native.pid):
                kills.strike(pid)
            self.native.wait()


@pytest.mark.parametrize("seed", seeds("1"))
@pytest.mark.parametrize("mode", ["sandbox", "driver", "pid"])
def test_processes_are_killed_at_any_moment(mode, seed):
    directory, driver = standin.fresh(1 << 16)
    with directory, Rekindle(**driver.environment, **FAULTS) as rekindle:
        scene = Scene(mode, seed, rekindle, driver, Marks(rekindle))
        try:
            for _ in range(rounds(2)):
                scene.take()
        except BaseException:
            for line in scene.log[-3:]:
                print(line)
            raise
        finally:
            scene.end()


class PodScene(Scene):
    """Containers of Podman's, one a round."""

    def __init__(self, seed, rekindle, driver, marks, pods):
        super().__init__("container", seed, rekindle, driver, marks)
        self.pods, self.number = pods, 0

    def take(self):
        rng, rekindle, pods = self.rng, self.rekindle, self.pods
        self.number += 1
        name = f"rekindle-kills-{os.getpid()}-{self.number}"
        words = kills.words(rng.choice([0, 1, 1]), rng.choice([0, 3]), 1, rng.choice(["none", "all"]), self.wrong)
        pods.start(name, words, self.driver.environment)
        root = pods.root(name)
        rekindle.wait(lambda: len(kills.steps(root)) == int(words[2]) + 1, "the program")
        pids = kills.members(root)
        after = rng.choice(["--leave-running", "--stop"])
        is_traced = lambda: any(machine.status(pid, "TracerPid") not in ("", "0") for pid in pids)
        take = ("checkpoint", "--container", name, "--to", "x", after)
        victim, told = self.kill_in(take, lambda: pids, kills.CHECKPOINT, is_traced)
        kills.check_told(told)
        made = {image["name"] for image in rekindle.json("images")["images"]}
        assert ("x" in made) == (told.code == 0), (made, told)
        lives = victim != root and not (after == "--stop" and told.code == 0)
        kills.rest(rekindle, [root] if lives else [], self.driver)
        if lives:
            kills.go_on(rekindle, root)
            rekindle("checkpoint", "--container", name, "--to", "again", "--leave-running")
            rekindle("rm", "again")
        pods.remove(name)
        if told.code == 0:
            rekindle("restore", "x", "--name", name)
            kills.go_on(rekindle, pods.root(name))
            pods.remove(name)
            rekindle("rm", "x")
        assert not self.wrong.exists(), self.wrong.read_text()


@pytest.mark.parametrize("seed", seeds("1"))
def test_processes_of_containers_are_killed_at_any_moment(seed):
    directory, driver = standin.fresh(1 << 16)
    with directory, Rekindle(**driver.environment, **FAULTS) as rekindle:
        try:
            pods = pod.Pods([driver.directory, rekindle.root])
        except OSError as error:
            pytest.skip(f"Podman cannot do that here: {error}")
        try:
            try:
                pods.probe()
            except OSError as error:
                pytest.skip(f"Podman cannot checkpoint a container here: {error}")
            scene = PodScene(seed, rekindle, driver, Marks(rekindle), pods)
            for _ in range(rounds(2)):
                scene.take()
        except AssertionError:
            for line in scene.log[-3:]:
                print(line)
            raise
        finally:
            pods.end()
