"""Many generations, all programs beside each other on one GPU: imaged, ended, restored from the last image or an older one, put to
sleep, in an order drawn from a seed. Every step's digest is compared with that of a native run. In the second half of the time
native programs compute beside them without a pause."""

import random
import threading
import time

from programs import WORKLOADS, Native, steps_of, steps_program, wait_for
from rekindle import CommandError, Rekindle

# Those with little memory: what is looked for is a generation that does not come back.
PROGRAMS = [name for name in WORKLOADS if name not in ("opt-350m", "gpt2-large", "gpt2-train")]
STEPS = 1000
START_LIMIT, LIMIT = 150, 60
BESIDE = ["resnet152", "bert-base", "timm-train", "jax"]
# Images of one program that are kept.
KEPT = 3
LEVELS = ["gpu", "host", "disk"]


def measure(binaries, memory, work, note, only, seconds, pause):
    """`seconds` is how long each program goes on from its first steps, `pause` how long it rests after a step."""
    with Rekindle(gpu="nvidia", binaries=binaries, state=memory / "generations") as rekindle:
        names = only or PROGRAMS
        busy = threading.Event()
        chains = [Chain(rekindle, name, native_steps(name, run), seconds, pause, busy) for name, run in natively(names, work)]
        threads = [threading.Thread(target=chain.run, args=(work,)) for chain in chains]
        for thread in threads:
            thread.start()
        wait_for(lambda: all(chain.began for chain in chains), START_LIMIT, "all programs' first steps")
        time.sleep(seconds / 2)
        beside = [Native(steps_program(name, work, 10**9, 0), work / f"{name}.beside") for name in BESIDE]
        for name, native in zip(BESIDE, beside, strict=True):
            wait_for(lambda: steps_of(native.lines()), START_LIMIT, f"the first step of {name}")
        busy.set()
        for thread in threads:
            thread.join()
        for native in beside:
            native.end()
        for chain in chains:
            note(chain.name, rekindle, chain.row)


def natively(names, work):
    """All at once: what takes long is their start."""
    runs = [(name, Native(steps_program(name, work, STEPS, 0), work / f"{name}.native")) for name in names]
    for name, run in runs:
        wait_for(lambda: run.process.poll() is not None, START_LIMIT, f"the end of the native {name}")
    return runs


def native_steps(name, run):
    steps = steps_of(run.lines())
    if len(steps) != STEPS:
        raise RuntimeError(f"the native {name} failed: {' | '.join(run.lines()[-4:])}")
    return steps


class WentWrong(Exception):
    """What a program did not do, or did otherwise."""


class Chain:
    """A program with all its generations."""

    def __init__(self, rekindle, name, native, seconds, pause, busy):
        self.rekindle, self.name, self.native, self.busy = rekindle, name, native, busy
        self.seconds, self.pause = seconds, pause
        self.random = random.Random(name)
        self.current = self.failure = None
        self.images, self.operations, self.last, self.numbers, self.began = [], [], -1, 0, False

    def run(self, work):
        try:
            self.current = self.next_name()
            self.rekindle.run(self.current, *steps_program(self.name, work, STEPS, self.pause))
            self.see_steps(range(1), 3, START_LIMIT)
            self.began = True
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                self.step()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"[-900:]
        finally:
            self.began = True
            self.rekindle("kill", self.current, check=False)

    def step(self):
        """One operation, and what the program says after it."""
        kinds = {"stop": 4, "go on": 3, "sleep": 2, "back": 3 if self.images else 0}
        # Who is nearly done goes back.
        kind = "back" if self.last > STEPS - 300 and self.images else self.random.choices(list(kinds), kinds.values())[0]
        row = {"kind": kind, "step": self.last, "busy": self.busy.is_set()}
        self.operations.append(row)
        if kind == "sleep":
            row["level"] = self.random.choice(LEVELS)
            try:
                row["seconds"] = self.timed("sleep", self.current, "--level", row["level"])
            except CommandError as error:
                # It woke by its next call before all was done.
                row["refused"] = error.message
                if "was wanted while it was to" not in error.message:
                    raise
            self.see_more()
        elif kind == "go on":
            image, before = self.next_name(), self.last
            row["seconds"] = self.timed("checkpoint", self.current, "--to", image, "--leave-running")
            self.see_again()
            self.keep(image, range(before + 1, self.last + 2))
            self.see_more()
        elif kind == "stop":
            image = self.next_name()
            row["seconds"] = self.timed("checkpoint", self.current, "--to", image, "--stop")
            self.see_again()
            self.keep(image, range(self.last + 1, self.last + 2))
            row |= self.restore(*self.images[-1])
        else:
            self.rekindle("kill", self.current)
            at = self.random.randrange(len(self.images))
            row["older"] = len(self.images) - 1 - at
            row |= self.restore(*self.images[at])

    def keep(self, image, firsts):
        """`firsts`: one of these steps is the first of whoever is restored from the image."""
        self.images.append((image, firsts))
        if len(self.images) > KEPT:
            self.rekindle("rmi", self.images.pop(self.random.randrange(KEPT))[0])

    def restore(self, image, firsts):
        """Seconds until the command returned and until the first step, and the phases that took longest, in ms."""
        self.current = self.next_name()
        start = time.monotonic()
        phases = self.rekindle.restore(image, self.current)["phases"]
        running = time.monotonic() - start
        self.see_steps(firsts, 1)
        answered = time.monotonic() - start
        self.see_steps(firsts, self.random.randrange(2, 5))
        longest = sorted(phases, key=lambda phase: phase["duration_us"])[-4:]
        return {"running_s": running, "step_s": answered, "phases": {phase["name"]: phase["duration_us"] / 1e3 for phase in longest}}

    def timed(self, *command):
        start = time.monotonic()
        self.rekindle(*command, limit=LIMIT)
        return time.monotonic() - start

    def next_name(self):
        self.numbers += 1
        return f"{self.name}-{self.numbers}"

    def see_again(self):
        """What it has said until now."""
        self.see_steps(range(self.first, self.first + 1), 1)

    def see_more(self):
        """That it goes on from where it is now."""
        self.see_again()
        self.see_steps(range(self.first, self.first + 1), self.last - self.first + 3)

    def see_steps(self, firsts, count, limit=LIMIT):
        """Waits for so many steps of who runs now; they are without a gap, begin with one of `firsts`, and say what the native ones do."""
        steps = {}

        def enough():
            steps.update(steps_of(self.rekindle.lines(self.current)))
            if len(steps) < count and not self.rekindle.sandbox(self.current)["pid"]:
                raise WentWrong(f"{self.current} ended: {' | '.join(self.rekindle.lines(self.current)[-5:])}")
            return len(steps) >= count

        wait_for(enough, limit, f"{count} steps of {self.current}")
        numbers = sorted(steps)
        if numbers[0] not in firsts or numbers != list(range(numbers[0], numbers[-1] + 1)):
            raise WentWrong(f"{self.current} has the steps {numbers[0]} to {numbers[-1]}, {len(numbers)} of them; its first is one of {list(firsts)}")
        self.first, self.last = numbers[0], numbers[-1]
        different = [number for number in numbers if steps[number] != self.native[number]]
        if different:
            raise WentWrong(f"{self.current} says something else than the native run in the steps {different[:5]} of {numbers[0]} to {numbers[-1]}")

    def row(self):
        done = self.operations[:-1] if self.failure else self.operations
        of = lambda kind: [row for row in done if row["kind"] == kind]
        return {
            "ok": self.failure is None,
            "error": self.failure,
            "images": len(of("go on")) + len(of("stop")),
            "restores": len(of("stop")) + len(of("back")),
            "of_older_images": len([row for row in of("back") if row["older"]]),
            "sleeps": len([row for row in of("sleep") if "refused" not in row]),
            "operations": self.operations,
        }
