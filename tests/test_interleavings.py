"""Commands in an order that nobody thought of, two at a time: programs go on, and what cannot be done is said."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interleavings import machine
from interleavings.rounds import REFUSED, play, rounds, seeds
from rekindle import PATIENCE, Rekindle

PROGRAM = Path(__file__).parent / "interleavings/program.py"
NAMES, IMAGES, GPUS = ("a", "b", "c"), ("x", "y"), ("emulated", "emulated:1")
# The numbers of `read`, `recvfrom` and `recvmsg`.
READS = ("0", "45", "47")
SLEEP_REFUSED = ["sleeps already", "was wanted while it was to go down a level", "is awake$", "no process of .* uses a GPU"]
MOVE_REFUSED = ["is migrating just now; try again", "cannot be migrated: (it runs on .* already|its GPU half sleeps|no process of it uses a GPU)"]


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
            lambda: ("migrate", name, "--gpu", rng.choice(GPUS), *rng.choice([(), ("--rounds", "2")])),
            lambda: ("kill", name),
            lambda: ("rmi", image),
        ]
    )()


def counts(rekindle, name):
    # The client may say beside them that the program is not woken yet.
    return int([-1, *(line for line in rekindle.lines(name) if line.isdigit())][-1])


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

        play(rekindle, REFUSED + SLEEP_REFUSED + MOVE_REFUSED, begin, lambda _: check(rekindle, go), rounds(12))


def begin(rekindle, *arguments):
    command = [rekindle.command, *arguments]
    return subprocess.Popen(command, env=rekindle.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def end(command):
    """Its exit code and what it said."""
    said = command.communicate(timeout=PATIENCE)[1]
    return command.returncode, said


def is_told_to_end(pid):
    """One that stands still has the signal before it."""
    pending = int(machine.status(pid, "ShdPnd") or "0", 16)
    return not machine.is_alive(pid) or bool(pending >> signal.SIGTERM - 1 & 1)


def awaits_answer(command):
    """It has asked the daemon, and reads from its socket."""
    return machine.read(command.pid, "syscall").split(" ")[0] in READS


def test_a_process_that_asks_for_a_gpu_in_the_middle_of_a_checkpoint_comes_along():
    with Rekindle(REKINDLE_FAULT="checkpoint-begun:hang") as rekindle:
        go = rekindle.root / "go"
        rekindle.run("late", "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.01; done; exec {sys.executable} {PROGRAM} {go} 1")
        checkpoint = begin(rekindle, "checkpoint", "late", "--to", "image", "--stop")
        rekindle.reached("checkpoint-begun")
        go.touch()
        assert rekindle.wait_lines("late", 1)[0] == "0"
        rekindle.let_go("checkpoint-begun")
        assert end(checkpoint) == (0, "")
        rekindle.restore("image", "again")
        rekindle.wait_lines("again", 5)
        check(rekindle, go)


@pytest.mark.parametrize("point", ["checkpoint-begun", "quiesced", "detached", "frozen", "saved", "draining", "drain-begun", "before-commit"])
def test_a_program_that_is_killed_in_the_middle_of_a_checkpoint_ends(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        rekindle.run("killed", sys.executable, PROGRAM, rekindle.root / "go", 1)
        rekindle.wait_lines("killed", 1)
        checkpoint = begin(rekindle, "checkpoint", "killed", "--to", "image", "--leave-running")
        rekindle.reached(point)
        pid = rekindle.sandbox("killed")["pid"]
        kill = begin(rekindle, "kill", "killed")
        rekindle.wait(lambda: is_told_to_end(pid), "the signal")
        rekindle.let_go(point)
        assert end(kill) == (0, "")
        code, said = end(checkpoint)
        # It may have been taken by then.
        assert not code or 'the program of "killed" ended while it was to be checkpointed' in said, said
        assert not rekindle.sandbox("killed")["pid"] and not rekindle.sandbox("killed")["problem"]
        assert bool(rekindle.json("images")["images"]) == (code == 0)
        if point in ("checkpoint-begun", "quiesced", "detached"):
            assert code == 1


def test_a_checkpoint_waits_for_what_falls_asleep_and_wakes_it():
    with Rekindle(REKINDLE_FAULT="sleep-saved:hang") as rekindle:
        go = rekindle.root / "go"
        rekindle.run("tired", sys.executable, PROGRAM, go, 1)
        rekindle.wait_lines("tired", 1)
        asleep = begin(rekindle, "sleep", "tired")
        rekindle.reached("sleep-saved")
        checkpoint = begin(rekindle, "checkpoint", "tired", "--to", "image", "--leave-running")
        rekindle.wait(lambda: awaits_answer(checkpoint), "the checkpoint to wait")
        rekindle.let_go("sleep-saved")
        assert end(asleep) == end(checkpoint) == (0, "")
        assert rekindle.sandbox("tired")["state"] == "running"
        check(rekindle, go)


def test_a_program_that_is_killed_as_it_wakes_has_no_problem():
    with Rekindle(REKINDLE_FAULT="wake-adopted:hang") as rekindle:
        go = rekindle.root / "go"
        rekindle.run("tired", sys.executable, PROGRAM, go, 1)
        rekindle.wait_lines("tired", 1)
        rekindle("sleep", "tired")
        go.touch()
        rekindle.reached("wake-adopted")
        pid = rekindle.sandbox("tired")["pid"]
        kill = begin(rekindle, "kill", "tired")
        rekindle.wait(lambda: not machine.is_alive(pid), "the program's end")
        rekindle.let_go("wake-adopted")
        assert end(kill) == (0, "")
        row = rekindle.sandbox("tired")
        assert (row["state"], row["problem"]) == ("killed", None)


@pytest.mark.parametrize("command", [["wake", "tired"], ["checkpoint", "tired", "--to", "image", "--stop"]], ids=["wake", "checkpoint"])
def test_a_program_that_has_just_ended_in_its_sleep_is_said_to_have_ended(rekindle, command):
    rekindle.run("tired", sys.executable, PROGRAM, rekindle.root / "go", 1)
    rekindle.wait_lines("tired", 1)
    rekindle("sleep", "tired")
    pid = rekindle.sandbox("tired")["pid"]
    inits = [init for init, words in machine.processes_of(rekindle).items() if words[1:2] == ["sandbox-init"]]
    try:
        # Who is to tell the daemon of it stands still.
        for init in inits:
            os.kill(init, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        rekindle.wait(lambda: not rekindle.sandbox("tired")["workers"], "the end of what keeps its GPU half")
        wakes = begin(rekindle, *command)
        rekindle.wait(lambda: wakes.poll() is not None or rekindle.sandbox("tired")["state"] == "waking", "it to be woken")
    finally:
        for init in inits:
            os.kill(init, signal.SIGCONT)
    assert end(wakes) == (1, 'rekindle: the program of "tired" ended while it was to be woken\n')
    rekindle.wait_end("tired")
    assert rekindle.sandbox("tired")["problem"] is None


@pytest.mark.parametrize("seconds", [0, 1], ids=["told at once", "told late"])
def test_a_restore_whose_worker_is_killed_begins_again_with_another(seconds):
    """However long a busy machine takes to tell of the worker's end, after its connection was closed."""
    with Rekindle(REKINDLE_FAULT="restore-vacant:hang") as rekindle:
        go = rekindle.root / "go"
        rekindle.run("program", sys.executable, PROGRAM, go, 1)
        rekindle.wait_lines("program", 1)
        rekindle("checkpoint", "program", "--to", "image", "--stop")
        restore = begin(rekindle, "restore", "image", "--name", "again", "-d")
        workers = lambda: [pid for row in rekindle.sandboxes() if row["name"] == "again" for pid in row["workers"]]
        rekindle.reached("restore-vacant")
        rekindle.wait(workers, "its worker")
        with machine.end_untold(workers()[0]):
            rekindle.let_go("restore-vacant")
            time.sleep(seconds)
        assert end(restore) == (0, "")
        check(rekindle, go)
