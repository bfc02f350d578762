"""A program whose GPU half sleeps: it gives the GPU back, wakes by itself at its next GPU call, and never notices."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon, log_of_the_only_program
from test_features import ALONE, FEATURES
from test_training import AHEAD, OPTIONS, reference  # noqa: F401
from training.pace import Pace

LEVELS = ["gpu", "host", "disk"]
# So long at least is waited, in seconds, where a program's end could explain a failure.
PARTING = 0.25


def feature(rekindle, name="buffers"):
    """A program that has things on the GPU and waits, without GPU calls, until `go` is there."""
    rekindle.run(name, sys.executable, FEATURES / f"{name}.py", rekindle.root / "go")
    assert rekindle.wait_lines(name, 1)[:1] == ["ready"], rekindle.lines(name)


def go(rekindle):
    (rekindle.root / "go").touch()


def fails(rekindle, *arguments):
    with pytest.raises(CommandError) as error:
        rekindle(*arguments)
    return error.value.message


def seconds(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def keepers(rekindle):
    """Processes that keep something for the sandboxes of this Rekindle."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            environment = (path / "environ").read_bytes()
        except OSError:
            continue
        if b"--keep" in words and str(rekindle.root).encode() in environment:
            found.append(int(path.name))
    return found


def assert_nothing_sleeps(rekindle):
    rekindle.wait(lambda: not keepers(rekindle), "the keepers to end")
    for root in (rekindle.state, rekindle.run_root):
        assert not list(root.glob("asleep*/**/images/*")) and not list(root.glob("asleep*/**/chunks/*/*"))


@pytest.mark.parametrize("name", ALONE)
def test_features_survive_sleep_at_every_level(rekindle, name):
    feature(rekindle, name)
    for level in LEVELS:
        slept = rekindle.json("sleep", name, "--level", level)
        shown = rekindle.sandbox(name)
        assert shown["state"] == "asleep" and slept["level"] == level
        # Memory that a pool held in reserve is given back.
        assert shown["device_bytes"] <= (slept["bytes"] if level == "gpu" else 0)
        if level != "disk":
            assert rekindle.json("wake", name)["level"] == level
            assert rekindle.sandbox(name)["state"] == "running"
    go(rekindle)
    assert rekindle.wait_end(name) == ["ready", "ok"]
    assert_nothing_sleeps(rekindle)


@pytest.mark.parametrize("level", LEVELS)
def test_training_that_is_put_to_sleep_again_and_again_gives_the_same_losses(rekindle, reference, level):  # noqa: F811
    pace = Pace(rekindle, 0)
    rekindle.run("training", *pace.command(*OPTIONS, "--pause", 0.05))
    for step in (3, 8, 13, 18):
        pace.to(step + AHEAD)
        rekindle.wait_lines("training", step)
        rekindle.wait(lambda: rekindle.sandbox("training")["state"] == "running", "the program to wake by itself")
        rekindle("sleep", "training", "--level", level)
    pace.end()
    assert rekindle.wait_end("training") == reference
    woken = [trace["operation"] for trace in rekindle.json("trace", "training", "--svg", rekindle.root / "picture.svg")["traces"]]
    assert woken == ["sleep", "wake"] * 4
    assert_nothing_sleeps(rekindle)


def test_a_call_wakes_the_program(rekindle):
    feature(rekindle)
    rekindle("sleep", "buffers")
    time.sleep(0.3)
    assert rekindle.sandbox("buffers")["state"] == "asleep"
    go(rekindle)
    assert rekindle.wait_end("buffers") == ["ready", "ok"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_sleeping_program_is_killed(rekindle, level):
    feature(rekindle)
    rekindle("sleep", "buffers", "--level", level)
    assert keepers(rekindle)
    rekindle("kill", "buffers")
    assert_nothing_sleeps(rekindle)


def test_a_killed_keeper_is_an_error_in_the_program(rekindle):
    feature(rekindle)
    rekindle("sleep", "buffers", "--level", "gpu")
    (keeper,) = keepers(rekindle)
    os.kill(keeper, signal.SIGKILL)
    rekindle.wait(lambda: rekindle.sandbox("buffers")["problem"], "the daemon to notice")
    assert "GPU worker" in fails(rekindle, "wake", "buffers")
    go(rekindle)
    lines = rekindle.wait_end("buffers")
    assert any("CUDA_ERROR_DEVICE_UNAVAILABLE" in line for line in lines), lines


@pytest.mark.parametrize("level", LEVELS)
def test_sleep_outlasts_the_daemon(rekindle, level):
    feature(rekindle)
    rekindle("sleep", "buffers", "--level", level)
    log = log_of_the_only_program(rekindle)
    kill_daemon(rekindle)
    # Nobody can wake it yet; it waits.
    go(rekindle)
    rekindle.wait(lambda: "is not woken yet" in log.read_text(), "the program to wait")
    assert rekindle.sandbox("buffers")["pid"]
    assert [line for line in rekindle.wait_end("buffers") if "sleeps" not in line] == ["ready", "ok"]
    assert_nothing_sleeps(rekindle)


POINTS = ["sleep-saved", "sleep-noted", "wake-begun", "wake-restored", "wake-adopted"]
# From the first of these on it is awake.
AWAKE = ["wake-resumed", "wake-noted", "wake-kept-ended"]


# Where it was kept is another matter only until it is on the GPU again.
@pytest.mark.parametrize(("point", "level"), [*((point, "gpu") for point in POINTS + AWAKE), *((point, "disk") for point in POINTS[:4] + AWAKE)])
def test_a_daemon_killed_in_between_loses_nothing(point, level):
    with Rekindle() as rekindle:
        feature(rekindle)
        if point.startswith("wake"):
            rekindle("sleep", "buffers", "--level", level)
        rekindle("shutdown")
        rekindle.environment["REKINDLE_FAULT"] = f"{point}:kill"
        if point.startswith("wake"):
            rekindle("wake", "buffers", check=False)
        else:
            rekindle("sleep", "buffers", "--level", level, check=False)
        del rekindle.environment["REKINDLE_FAULT"]
        asleep = point.startswith("wake") and point not in AWAKE
        row = rekindle.sandbox("buffers")
        assert (row["state"], row["problem"]) == ("asleep" if asleep else "running", None)
        # It is whole: an image of it is one.
        rekindle("checkpoint", "buffers", "--to", "image", "--leave-running")
        go(rekindle)
        assert [line for line in rekindle.wait_end("buffers") if "sleeps" not in line] == ["ready", "ok"]
        assert_nothing_sleeps(rekindle)


@pytest.mark.parametrize("point", POINTS)
def test_a_step_that_fails_leaves_all_as_it_was(point):
    with Rekindle() as rekindle:
        feature(rekindle)
        if point.startswith("wake"):
            rekindle("sleep", "buffers", "--level", "gpu")
        rekindle("shutdown")
        rekindle.environment["REKINDLE_FAULT"] = point
        command = ["wake", "buffers"] if point.startswith("wake") else ["sleep", "buffers", "--level", "gpu"]
        assert "injected" in fails(rekindle, *command)
        assert rekindle.sandbox("buffers")["state"] == ("asleep" if point.startswith("wake") else "running")
        rekindle("shutdown")
        del rekindle.environment["REKINDLE_FAULT"]
        if point.startswith("wake"):
            rekindle("wake", "buffers")
        go(rekindle)
        assert rekindle.wait_end("buffers") == ["ready", "ok"]
        assert_nothing_sleeps(rekindle)


@pytest.mark.parametrize("level", LEVELS)
def test_too_little_gpu_memory_leaves_it_asleep(rekindle, level):
    feature(rekindle)
    rekindle("sleep", "buffers", "--level", level)
    rekindle("shutdown")
    rekindle.environment["REKINDLE_EMULATED"] = "memory=16M"
    message = fails(rekindle, "wake", "buffers")
    assert "sleeps on" in message and "memory" in message.lower(), message
    go(rekindle)
    rekindle.wait(lambda: any("is not woken yet" in line for line in rekindle.lines("buffers")), "the program to say so")
    shown = []

    def is_said():
        shown[:] = [rekindle.sandbox("buffers")]
        return shown[0]["problem"]

    rekindle.wait(is_said, "the daemon to say so")
    assert shown[0]["state"] in ("asleep", "waking") and "memory" in shown[0]["problem"].lower()
    rekindle("shutdown")
    del rekindle.environment["REKINDLE_EMULATED"]
    rekindle("wake", "buffers", check=False)
    assert rekindle.wait_end("buffers")[-1] == "ok"


def test_a_sleeping_program_is_checkpointed(rekindle):
    feature(rekindle)
    rekindle("sleep", "buffers")
    rekindle("checkpoint", "buffers", "--to", "image", "--stop")
    rekindle.restore("image", "restored")
    rekindle("sleep", "restored", "--level", "gpu")
    go(rekindle)
    assert rekindle.wait_end("restored") == ["ok"]


def test_what_cannot_sleep_or_wake_is_refused(rekindle):
    rekindle.run("plain", "sleep", "infinity")
    assert "nothing to put to sleep" in fails(rekindle, "sleep", "plain")
    assert "is awake" in fails(rekindle, "wake", "plain")
    assert "no sandbox" in fails(rekindle, "sleep", "nobody")
    with pytest.raises(CommandError):
        rekindle("sleep", "plain", "--level", "moon")
    feature(rekindle)
    rekindle("sleep", "buffers")
    assert "sleeps already" in fails(rekindle, "sleep", "buffers")
    # Nobody waits to see whether the program is ending: nothing that a program does would make this right.
    rekindle.wait(lambda: seconds(lambda: fails(rekindle, "sleep", "buffers")) < PARTING, "an answer at once")
    rekindle("kill", "buffers")
    assert "not running" in fails(rekindle, "wake", "buffers")


def test_a_full_disk_keeps_the_program_awake():
    with Rekindle(REKINDLE_FAULT="disk:100000") as rekindle:
        feature(rekindle)
        for level in ("host", "disk"):
            message = fails(rekindle, "sleep", "buffers", "--level", level)
            assert "full" in message or "space" in message, message
            assert rekindle.sandbox("buffers")["state"] == "running"
        go(rekindle)
        assert rekindle.wait_end("buffers") == ["ready", "ok"]


@pytest.mark.parametrize("level", LEVELS)
def test_one_that_sleeps_before_it_was_asked_whether_all_is_loaded_goes_on(level):
    with Rekindle(REKINDLE_FAULT="load-awaited:hang") as rekindle:
        feature(rekindle)
        rekindle("checkpoint", "buffers", "--to", "image", "--stop")
        rekindle.restore("image", "restored")
        rekindle.reached("load-awaited")
        rekindle("sleep", "restored", "--level", level)
        rekindle.let_go("load-awaited")
        # Whoever it is that asks has asked by then.
        time.sleep(1)
        assert rekindle.sandbox("restored")["problem"] is None
        go(rekindle)
        assert rekindle.wait_end("restored")[-1] == "ok"
