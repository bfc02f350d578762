"""A chain of generations: a program that knows every byte of its memory is changed, taken, and brought back, again and again."""

import errno
import os
import random
import select
import shutil
import subprocess
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("wander.c")
# What is waited for has so long, seconds.
PATIENCE = 120
PAGES = 8192


class WentWrong(Exception):
    """What a program said of its memory, or that it said nothing."""


def build(directory):
    """The program."""
    program = Path(directory) / "wander"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", SOURCE, "-o", program], check=True)
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

    def __init__(self, rekindle, program, seed, name="wander", pages=PAGES):
        self.rekindle, self.name, self.seed, self.pages = rekindle, name, seed, pages
        self.random = random.Random(f"generations {seed}")
        self.directory = rekindle.root / name
        self.directory.mkdir()
        self.orders = Orders(self.directory)
        self.program = program
        self.generation = self.operations = 0
        # The images that there are, the last last.
        self.images = []

    def begin(self):
        self.rekindle.run(self.name, self.program, self.directory, self.seed, self.pages)
        self.change()

    def go(self):
        self.orders.send(f"go {self.random.getrandbits(48)} {self.random.choice([1, 5, 20, 60])}")

    def heed(self):
        try:
            text = self.orders.answer()
        except WentWrong as error:
            row = self.rekindle.sandbox(self.name)
            raise WentWrong(
                f"{error}; it is {row['state']}, exit code {row['exit_code']}, problem {row['problem']}; {self.stands(row['pid'])}"
            ) from None
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
        if draw.random() < 0.7:
            rekindle("checkpoint", self.name, "--to", image, "--stop")
        else:
            rekindle("checkpoint", self.name, "--to", image, "--leave-running")
            rekindle("kill", "--signal", "9", self.name)
            rekindle.wait(lambda: not rekindle.sandbox(self.name)["pid"], f"the end of {self.name}")
        self.images.append((image, is_busy))
        if draw.random() < 0.1:
            rekindle("verify", image)
        # An image stands for itself, whatever becomes of those before it.
        back = 0 if draw.random() < 0.9 else draw.randrange(len(self.images))
        image, is_busy = self.images[-1 - back]
        rekindle("restore", image, "--name", self.name, "--gpu", rekindle.gpu, "-d")
        if is_busy:
            self.heed()
        self.change()
        if len(self.images) > 3:
            # Any but the last two.
            old = self.images.pop(draw.randrange(len(self.images) - 2))
            rekindle("rm", old[0])

    def end(self):
        self.orders.send("end")
        if (text := self.orders.answer()) != "ended":
            raise WentWrong(text)
        self.rekindle.wait_end(self.name)
        if self.images:
            self.rekindle("rm", *(image for image, _ in self.images))
        shutil.rmtree(self.directory)
