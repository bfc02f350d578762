"""A chain of generations: a program that knows every byte of its memory is changed, taken, and brought back, again and again.

A chain's seed says what it is: every second one has memory on the GPU too, and is put to sleep and woken; every third one
begins from a framework's image. Some images are of a program that goes on, and follow each other. In each, now and then, memory that was mapped from page files is read again, and a program
forgets which page files it maps, as one that an earlier version has restored.
"""

import contextlib
import errno
import os
import random
import select
import shutil
import subprocess
import time
from pathlib import Path

SOURCES = Path(__file__).with_name("wander")
# What is waited for has so long, seconds.
PATIENCE = 120
PAGES = 8192


class WentWrong(Exception):
    """What a program said of its memory, or that it said nothing."""


def build(directory):
    """The program."""
    program = Path(directory) / "wander"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", *SOURCES.glob("*.c"), "-o", program, "-ldl"], check=True)
    return program


class Orders:
    """The named pipes by which a program is told what to do."""

    def __init__(self, directory):
        self.directory = Path(directory)
        for name in ("command", "answer"):
            os.mkfifo(self.directory / name)

    def send(self, order):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                pipe = os.open(self.directory / "command", os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError as error:
                # The program does not wait for it yet.
                if error.errno != errno.ENXIO or time.monotonic() > deadline:
                    raise WentWrong(f"the program does not take orders: {error}") from None
            time.sleep(0.0005)
        with open(pipe, "w") as stream:
            stream.write(order)

    def answer(self):
        pipe = os.open(self.directory / "answer", os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not select.select([pipe], [], [], PATIENCE)[0]:
                raise WentWrong("the program does not answer")
            text = os.read(pipe, 4096).decode()
        finally:
            os.close(pipe)
        return text.strip()


class Chain:
    """One program and its generations, all drawn from a seed."""

    def __init__(self, rekindle, program, seed, name="wander", pages=PAGES, follows=0.2):
        self.rekindle, self.name, self.seed, self.pages, self.follows = rekindle, name, seed, pages, follows
        self.random = random.Random(f"generations {seed}")
        self.directory = rekindle.root / name
        self.directory.mkdir()
        self.orders = Orders(self.directory)
        self.program = program
        self.generation = self.operations = 0
        # The images that there are, the last last.
        self.images = []
        self.has_gpu, self.has_framework = seed % 2 == 0, seed % 3 == 0
        self.framework = f"{name}-framework"

    def begin(self):
        command = [self.program, self.directory, self.seed, self.pages, *(["gpu"] if self.has_gpu else [])]
        if self.has_framework:
            self.rekindle("image", "framework", self.framework, "--gpu", self.rekindle.gpu, "--", *command)
            self.begin_from_framework()
        else:
            self.rekindle.run(self.name, *command)
        self.change()

    def begin_from_framework(self):
        """An app that is the framework's program as it was."""
        self.rekindle("run", "-d", "--name", self.name, "--from", self.framework, "--", "app")

    def go(self):
        order = f"go {self.random.getrandbits(48)} {self.random.choice([1, 5, 20, 60])}"
        with self.told_where():
            self.orders.send(order)

    @contextlib.contextmanager
    def told_where(self):
        """Who finds the program silent is told in which state it is."""
        try:
            yield
        except WentWrong as error:
            row = self.rekindle.sandbox(self.name)
            raise WentWrong(
                f"{error}; it is {row['state']}, exit code {row['exit_code']}, problem {row['problem']}; {self.stands(row['pid'])}"
            ) from None

    def heed(self):
        with self.told_where():
            text = self.orders.answer()
        word, *rest = text.split()
        if word != "ok":
            raise WentWrong(text)
        self.operations = int(rest[0])

    def stands(self, pid):
        """Where the program's processes are in the kernel, for who looks for the reason."""
        told, pids = [], [pid] if pid else []
        while pids:
            task = Path(f"/proc/{pids.pop()}")
            try:
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                told.append(f"{task.name} {state}: {(task / 'syscall').read_text().strip()}; {(task / 'stack').read_text().split()}")
                pids += map(int, (task / f"task/{task.name}/children").read_text().split())
            except OSError as error:
                told.append(f"{task.name}: {error}")
        return ", ".join(told)

    def change(self):
        self.go()
        self.heed()

    def step(self):
        """One generation."""
        draw, rekindle = self.random, self.rekindle
        self.generation += 1
        image = f"{self.name}-{self.generation}"
        # Sometimes in the middle of its work.
        is_busy = draw.random() < 0.3
        if is_busy:
            self.go()
            time.sleep(draw.random() * 0.01)
        if self.has_gpu and draw.random() < 0.3:
            self.sleep()
        if draw.random() < self.follows:
            if is_busy:
                self.heed()
            is_busy = False
            self.follow(image)
        if draw.random() < 0.1:
            self.forget()
        if draw.random() < 0.7:
            rekindle("checkpoint", self.name, "--to", image, "--stop")
        else:
            rekindle("checkpoint", self.name, "--to", image, "--leave-running")
            rekindle("kill", "--signal", "9", self.name)
            rekindle.wait(lambda: not rekindle.sandbox(self.name)["pid"], f"the end of {self.name}")
        self.images.append((image, is_busy))
        if draw.random() < 0.1:
            rekindle("verify", image)
        is_busy = self.bring_back()
        if is_busy:
            self.heed()
        if self.has_gpu and draw.random() < 0.2:
            self.sleep()
        self.change()
        while len(self.images) > 3:
            # Any but the last two.
            old = self.images.pop(draw.randrange(len(self.images) - 2))
            rekindle("rmi", old[0])

    def follow(self, image):
        """Images that follow each other, of the program that goes on."""
        for number in range(self.random.randrange(1, 4)):
            taken = f"{image}-{number}"
            self.rekindle("checkpoint", self.name, "--to", taken, "--leave-running")
            self.images.append((taken, False))
            self.change()
            if self.random.random() < 0.3:
                self.rekindle("rmi", self.images.pop(self.random.randrange(len(self.images)))[0])

    def bring_back(self):
        """From the last image, or an earlier one; whether it was taken in the middle of its work."""
        draw = self.random
        if self.has_framework and draw.random() < 0.05:
            self.begin_from_framework()
            return False
        # An image stands for itself, whatever becomes of those before it.
        back = 0 if draw.random() < 0.9 else draw.randrange(len(self.images))
        image, is_busy = self.images[-1 - back]
        self.rekindle("restore", image, "--name", self.name, "--gpu", self.rekindle.gpu, "-d")
        return is_busy

    def sleep(self):
        """Puts its GPU half to sleep. What it does next on the GPU wakes it, or its checkpoint, or this."""
        self.rekindle("sleep", self.name, "--level", self.random.choice(["gpu", "host", "disk"]))
        if self.random.random() < 0.3:
            self.rekindle.wake(self.name)

    def forget(self):
        """Has its next image lose what is known of its page files, or have its memory read by a restore and not mapped."""
        rekindle = self.rekindle
        if self.random.random() < 0.5:
            for known in rekindle.state.glob("pages/*/parts.json"):
                # That of one that has ended may go just now.
                known.unlink(missing_ok=True)
            return
        rekindle("shutdown")
        if rekindle.environment.pop("REKINDLE_TUNING", None) is None:
            rekindle.environment["REKINDLE_TUNING"] = "restore.map-pages=off"

    def end(self):
        self.orders.send("end")
        if (text := self.orders.answer()) != "ended":
            raise WentWrong(text)
        self.rekindle.wait_end(self.name)
        images = [image for image, _ in self.images] + ([self.framework] if self.has_framework else [])
        if images:
            self.rekindle("rmi", *images)
        shutil.rmtree(self.directory)
