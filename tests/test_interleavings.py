"""Commands in an order that nobody thought of, two at a time: programs go on, and what cannot be done is said."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from interleavings.rounds import REFUSED, play, rounds, seeds
from rekindle import Rekindle

PROGRAM = Path(__file__).parent / "interleavings/program.py"
NAMES, IMAGES = ("a", "b", "c"), ("x", "y")
SLEEP_REFUSED = ["sleeps already", "is awake$", "no process of .* uses a GPU"]


def command(rng, go):
    """One that may make sense or not, by chance."""
    name, image = rng.choice(NAMES), rng.choice(IMAGES)
    return rng.choice(
        [
            lambda: ("run", "-d", "--name", name, "--", sys.executable, PROGRAM, go, rng.randrange(100)),
            lambda: ("checkpoint", name, "--to", image, "--leave-running"),
            lambda: ("checkpoint", name, "--to", image, "--stop"),
            lambda: ("restore", image, "--name", name, "-d"),
            lambda: ("restore", image, "--name", name, "-d"),
            lambda: ("sleep", name, "--level", rng.choice(["gpu", "host", "disk"])),
            lambda: ("sleep", name, "--level", rng.choice(["gpu", "host", "disk"])),
            lambda: ("wake", name),
            lambda: ("kill", name),
            lambda: ("rm", image),
        ]
    )()


def counts(rekindle, name):
    return int([-1, *rekindle.lines(name)][-1])


def live(rekindle):
    return [row for row in rekindle.sandboxes() if row["pid"]]


def check(rekindle, go):
    """All that live count on; none has ended but by a command."""
    before = {row["name"]: counts(rekindle, row["name"]) for row in live(rekindle)}
    go.touch()
    for name, count in before.items():
        rekindle.wait(lambda: counts(rekindle, name) > count + 2 or not rekindle.sandbox(name)["pid"], f"{name} to go on")
    go.unlink()
    for row in rekindle.sandboxes():
        said = rekindle.lines(row["name"])[-3:]
        assert row["pid"] or row["exit_code"] in (137, 143) or row["state"] == "stopped", (row, said)
        assert not row["problem"], (row, said)


@pytest.mark.parametrize("seed", seeds("1 2 3"))
def test_two_commands_at_a_time(seed):
    """With every second seed programs run meanwhile, with every third there are caches, which hold only a part."""
    rng = random.Random(seed)
    caches = {} if seed % 3 else {"REKINDLE_HOST_CACHE": "5M", "REKINDLE_GPU_CACHE": "8M"}
    with Rekindle(**caches) as rekindle:
        go = rekindle.root / "go"
        for name in NAMES[:2]:
            rekindle.run(name, sys.executable, PROGRAM, go, seed + len(name))

        def begin(_):
            if seed % 2 == 0:
                go.touch()
            return [command(rng, go) for _ in range(2)]

        play(rekindle, REFUSED + SLEEP_REFUSED, begin, lambda _: check(rekindle, go), rounds(12))


def in_state(rekindle, name, state):
    rekindle.wait(lambda: rekindle.sandbox(name)["state"] == state, f"{name} to be {state}")


def begin(rekindle, *arguments):
    command = [rekindle.command, *arguments]
    return subprocess.Popen(command, env=rekindle.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_a_process_that_asks_for_a_gpu_in_the_middle_of_a_checkpoint_comes_along():
    with Rekindle(REKINDLE_FAULT="checkpoint-begun:slow") as rekindle:
        go = rekindle.root / "go"
        rekindle.run("late", "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.01; done; exec {sys.executable} {PROGRAM} {go} 1")
        checkpoint = begin(rekindle, "checkpoint", "late", "--to", "image", "--stop")
        in_state(rekindle, "late", "checkpointing")
        go.touch()
        assert checkpoint.wait(60) == 0, checkpoint.stderr.read()
        rekindle.restore("image", "again")
        rekindle.wait_lines("again", 5)
        check(rekindle, go)


@pytest.mark.parametrize("point", ["checkpoint-begun", "quiesced", "detached", "frozen", "saved", "before-commit"])
def test_a_program_that_is_killed_in_the_middle_of_a_checkpoint_ends(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:slow") as rekindle:
        rekindle.run("killed", sys.executable, PROGRAM, rekindle.root / "go", 1)
        rekindle.wait_lines("killed", 1)
        checkpoint = begin(rekindle, "checkpoint", "killed", "--to", "image", "--leave-running")
        in_state(rekindle, "killed", "checkpointing")
        rekindle("kill", "killed")
        said = checkpoint.communicate(timeout=30)[1]
        # It may have been taken by then.
        assert not checkpoint.returncode or 'the program of "killed" ended while it was to be checkpointed' in said, said
        assert not rekindle.sandbox("killed")["pid"] and not rekindle.sandbox("killed")["problem"]
        assert bool(rekindle.json("images")["images"]) == (checkpoint.returncode == 0)
        if point in ("quiesced", "detached"):
            assert checkpoint.returncode == 1


def test_a_checkpoint_waits_for_what_falls_asleep_and_wakes_it():
    with Rekindle(REKINDLE_FAULT="sleep-saved:slow") as rekindle:
        go = rekindle.root / "go"
        rekindle.run("tired", sys.executable, PROGRAM, go, 1)
        rekindle.wait_lines("tired", 1)
        asleep = begin(rekindle, "sleep", "tired")
        in_state(rekindle, "tired", "falling-asleep")
        rekindle("checkpoint", "tired", "--to", "image", "--leave-running")
        assert asleep.wait(30) == 0, asleep.stderr.read()
        assert rekindle.sandbox("tired")["state"] == "running"
        check(rekindle, go)


def test_a_restore_whose_worker_is_killed_begins_again_with_another():
    with Rekindle(REKINDLE_FAULT="restore-vacant:slow") as rekindle:
        go = rekindle.root / "go"
        rekindle.run("program", sys.executable, PROGRAM, go, 1)
        rekindle.wait_lines("program", 1)
        rekindle("checkpoint", "program", "--to", "image", "--stop")
        restore = begin(rekindle, "restore", "image", "--name", "again", "-d")
        workers = lambda: [pid for row in rekindle.sandboxes() if row["name"] == "again" for pid in row["workers"]]
        rekindle.wait(workers, "its worker")
        os.kill(workers()[0], signal.SIGKILL)
        assert restore.wait(30) == 0, restore.stderr.read()
        check(rekindle, go)
