"""A GPU half that sleeps goes down from level to level: its program is not woken, and at each level can be."""

import contextlib
import os
import signal
import subprocess

import pytest
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon
from test_features import ALONE
from test_ipc import Scene as Relays
from test_processes import asleep
from test_sleep import AHEAD, LEVELS, OPTIONS, Pace, assert_nothing_sleeps, fails, feature, go, keepers, reference  # noqa: F401

# Each step down, and the one that leaves a level out.
STEPS = [("gpu", "host"), ("host", "disk"), ("gpu", "disk")]
# Before the second list's first it sleeps where it was, from there on at the lower level.
BEFORE = ["down-begun", "down-restored", "down-saved"]
AFTER = ["down-noted", "down-let-go"]
POINTS = [(point, step) for point in BEFORE + AFTER for step in STEPS if (point, step[0]) != ("down-restored", "host")]


def level(rekindle, name="buffers"):
    """Where it sleeps."""
    row = rekindle.sandbox(name)
    assert row["state"] == "asleep", row
    return row["asleep"]


def ends_well(rekindle, name="buffers"):
    go(rekindle)
    assert [line for line in rekindle.wait_end(name) if "sleeps" not in line] == ["ready", "ok"]
    assert_nothing_sleeps(rekindle)


def stores(rekindle):
    """The levels that something is kept at."""
    places = {
        "gpu": rekindle.run_root.glob("asleep-gpu/*/images/*"),
        "host": rekindle.run_root.glob("asleep/*/images/*"),
        "disk": rekindle.state.glob("asleep/images/*"),
    }
    return {name for name, images in places.items() if list(images)}


@pytest.mark.parametrize("name", ALONE)
def test_features_go_down_level_by_level(rekindle, name):
    feature(rekindle, name)
    bytes_held = rekindle.json("sleep", name, "--level", "gpu")["bytes"]
    kept = keepers(rekindle)
    assert rekindle.sandbox(name)["device_bytes"] <= bytes_held
    for lower in ("host", "disk"):
        went = rekindle.json("sleep", name, "--level", lower)
        assert (went["level"], went["bytes"]) == (lower, bytes_held)
        assert level(rekindle, name) == lower and rekindle.sandbox(name)["device_bytes"] == 0
        assert stores(rekindle) == {lower}
    assert keepers(rekindle) == kept
    traces = rekindle.json("trace", name, "--svg", rekindle.root / "picture.svg")["traces"]
    assert [(trace["operation"], trace["image"]) for trace in traces] == [("sleep", level) for level in LEVELS]
    ends_well(rekindle, name)


@pytest.mark.parametrize("step", STEPS)
def test_from_each_level_it_wakes_and_sleeps_again(rekindle, step):
    feature(rekindle)
    for _ in range(2):
        for where in step:
            rekindle("sleep", "buffers", "--level", where)
        assert rekindle.json("wake", "buffers")["level"] == step[-1]
        assert rekindle.sandbox("buffers")["state"] == "running" and not stores(rekindle)
    ends_well(rekindle)


def test_training_goes_down_again_and_again_and_gives_the_same_losses(rekindle, reference):  # noqa: F811
    pace = Pace(rekindle, 0)
    rekindle.run("training", *pace.command(*OPTIONS, "--pause", 0.05))
    for step, way in ((3, "gpu host"), (8, "host disk"), (13, "gpu disk"), (18, "gpu host disk")):
        pace.to(step + AHEAD)
        rekindle.wait_lines("training", step)
        rekindle.wait(lambda: rekindle.sandbox("training")["state"] == "running", "the program to wake by itself")
        for where in way.split():
            # Its next step may come first, and wakes it.
            with contextlib.suppress(CommandError):
                rekindle("sleep", "training", "--level", where)
    pace.end()
    assert rekindle.wait_end("training") == reference
    assert_nothing_sleeps(rekindle)


def test_what_sleeps_goes_down_only(rekindle):
    feature(rekindle)
    rekindle("sleep", "buffers", "--level", "disk")
    for where in LEVELS:
        message = fails(rekindle, "sleep", "buffers", "--level", where)
        assert "sleeps already" in message and "disk" in message, message
    ends_well(rekindle)


@pytest.mark.parametrize(("point", "step"), POINTS)
def test_a_daemon_killed_in_between_leaves_it_at_one_of_both_levels(point, step):
    higher, lower = step
    with Rekindle() as rekindle:
        feature(rekindle)
        rekindle("sleep", "buffers", "--level", higher)
        rekindle("shutdown")
        rekindle.environment["REKINDLE_FAULT"] = f"{point}:kill"
        rekindle("sleep", "buffers", "--level", lower, check=False)
        del rekindle.environment["REKINDLE_FAULT"]
        where = lower if point in AFTER else higher
        assert level(rekindle) == where and stores(rekindle) == {where}
        row = rekindle.sandbox("buffers")
        assert row["problem"] is None and (row["device_bytes"] > 0) == (where == "gpu")
        if where == higher:
            rekindle("sleep", "buffers", "--level", lower)
        rekindle.wait(lambda: len(rekindle.sandbox("buffers")["workers"]) == 1, "nobody but the keeper to be left")
        ends_well(rekindle)


@pytest.mark.parametrize(("point", "step"), [(point, step) for point, step in POINTS if point in BEFORE])
def test_a_step_that_fails_leaves_it_where_it_was(point, step):
    higher, lower = step
    with Rekindle(REKINDLE_FAULT=point) as rekindle:
        feature(rekindle)
        rekindle("sleep", "buffers", "--level", higher)
        message = fails(rekindle, "sleep", "buffers", "--level", lower)
        assert f"sleeps on at level {higher}" in message and "injected" in message, message
        assert level(rekindle) == higher and stores(rekindle) == {higher}
        ends_well(rekindle)


def held_while_it_goes_down(rekindle, point, *step):
    """The command that has it go down, which is held at this point."""
    feature(rekindle)
    rekindle("sleep", "buffers", "--level", step[0])
    kept = set(rekindle.sandbox("buffers")["workers"])
    command = rekindle.begin("sleep", "buffers", "--level", step[1])
    rekindle.reached(point)
    return command, kept


@pytest.mark.parametrize("point", ["down-begun", "down-restored"])
def test_a_worker_that_is_killed_meanwhile_leaves_it_where_it_was(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        command, kept = held_while_it_goes_down(rekindle, point, "gpu", "host")
        (worker,) = set(rekindle.sandbox("buffers")["workers"]) - kept
        os.kill(worker, signal.SIGKILL)
        rekindle.let_go(point)
        with pytest.raises(CommandError, match="sleeps on at level gpu"):
            command.end()
        assert level(rekindle) == "gpu" and stores(rekindle) == {"gpu"}
        assert rekindle.sandbox("buffers")["problem"] is None
        # Another worker does it.
        rekindle("sleep", "buffers", "--level", "host")
        ends_well(rekindle)


@pytest.mark.parametrize("point", ["down-begun", "down-restored"])
def test_a_call_meanwhile_calls_it_off(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        command, kept = held_while_it_goes_down(rekindle, point, "gpu", "host")
        go(rekindle)
        rekindle.wait(lambda: set(rekindle.sandbox("buffers")["workers"]) == kept, "the worker that copies to be ended")
        rekindle.let_go(point)
        with pytest.raises(CommandError, match="was wanted"):
            command.end()
        assert rekindle.wait_end("buffers") == ["ready", "ok"]
        assert_nothing_sleeps(rekindle)


@pytest.mark.parametrize("point", ["down-begun", "down-saved", "down-noted"])
def test_a_call_while_it_goes_to_disk_finds_it_all(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        feature(rekindle)
        rekindle("sleep", "buffers", "--level", "host")
        command = rekindle.begin("sleep", "buffers", "--level", "disk")
        rekindle.reached(point)
        go(rekindle)
        rekindle.let_go(point)
        # The call may come before the copy, or after it.
        with contextlib.suppress(CommandError):
            command.end()
        assert rekindle.wait_end("buffers") == ["ready", "ok"]
        assert_nothing_sleeps(rekindle)


def test_who_wakes_it_meanwhile_calls_it_off():
    with Rekindle(REKINDLE_FAULT="down-restored:hang") as rekindle:
        command, kept = held_while_it_goes_down(rekindle, "down-restored", "gpu", "host")
        (worker,) = set(rekindle.sandbox("buffers")["workers"]) - kept
        wake = rekindle.begin("wake", "buffers")
        rekindle.wait(lambda: worker not in rekindle.sandbox("buffers")["workers"], "the worker that copies to be ended")
        rekindle.let_go("down-restored")
        with pytest.raises(CommandError, match="was wanted"):
            command.end()
        wake.end()
        assert rekindle.sandbox("buffers")["state"] == "running"
        ends_well(rekindle)


def test_a_full_disk_leaves_it_where_it_was():
    with Rekindle(REKINDLE_FAULT="disk:100000") as rekindle:
        feature(rekindle)
        rekindle("sleep", "buffers", "--level", "gpu")
        for lower in ("host", "disk"):
            message = fails(rekindle, "sleep", "buffers", "--level", lower)
            assert "sleeps on at level gpu" in message and ("full" in message or "space" in message), message
            assert level(rekindle) == "gpu" and stores(rekindle) == {"gpu"}
        ends_well(rekindle)


def test_without_room_in_memory_it_stays_on_the_gpu_and_may_go_to_disk():
    with Rekindle() as rekindle:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "rekindle", rekindle.run_root], check=True)
        try:
            feature(rekindle)
            rekindle("sleep", "buffers", "--level", "gpu")
            message = fails(rekindle, "sleep", "buffers", "--level", "host")
            assert "sleeps on at level gpu" in message and "MB are free" in message, message
            assert level(rekindle) == "gpu"
            rekindle("sleep", "buffers", "--level", "disk")
            ends_well(rekindle)
            rekindle("shutdown")
        finally:
            subprocess.run(["umount", "-l", rekindle.run_root], check=True)


def test_without_a_gpu_it_stays_where_it_is(rekindle):
    feature(rekindle)
    rekindle("sleep", "buffers", "--level", "gpu")
    rekindle("shutdown")
    rekindle.environment["REKINDLE_EMULATED"] = "model=Another"
    assert "sleeps on at level gpu" in fails(rekindle, "sleep", "buffers", "--level", "host")
    assert level(rekindle) == "gpu"
    rekindle("shutdown")
    del rekindle.environment["REKINDLE_EMULATED"]
    rekindle("sleep", "buffers", "--level", "host")
    ends_well(rekindle)


def test_the_next_daemon_takes_it_further_down(rekindle):
    feature(rekindle)
    for where in LEVELS:
        rekindle("sleep", "buffers", "--level", where)
        kill_daemon(rekindle)
        assert level(rekindle) == where and stores(rekindle) == {where}
    ends_well(rekindle)


def test_all_halves_of_a_program_go_down_together(rekindle):
    scene, pause = asleep(rekindle, "--level", "gpu")
    for lower in ("host", "disk"):
        rekindle("sleep", "a", "--level", lower)
        assert level(rekindle, "a") == lower and rekindle.sandbox("a")["device_bytes"] == 0
    pause.unlink()
    scene.goes_on("a")
    assert len(scene.workers("a")) == 2


@pytest.mark.parametrize("lower", ["host", "disk"])
def test_of_a_half_whose_process_has_ended_nothing_goes_down(rekindle, lower):
    scene, pause = asleep(rekindle, "--level", "gpu")
    os.kill(scene.process("a", 1), signal.SIGKILL)
    rekindle.wait(lambda: len(scene.workers("a")) == 1, "the end of its keeper")
    rekindle("sleep", "a", "--level", lower)
    pause.unlink()
    scene.goes_on("a", [0])
    assert rekindle.json("checkpoint", "a", "--to", "x", "--stop")["gpu_processes"] == 1


def test_memory_that_processes_share_goes_down_with_them(rekindle):
    scene = Relays(rekindle).begin("a")
    went = 0
    for _ in range(20):
        # They are never idle: a call wakes them, now and then before they are down.
        with contextlib.suppress(CommandError):
            rekindle("sleep", "a", "--level", "gpu")
            rekindle("sleep", "a", "--level", "host")
            went += 1
        scene.goes_on("a")
        if went == 3:
            return
    assert went, "it was always woken before"


def test_a_program_that_is_killed_meanwhile_leaves_nothing():
    with Rekindle(REKINDLE_FAULT="down-restored:hang") as rekindle:
        command, _ = held_while_it_goes_down(rekindle, "down-restored", "gpu", "host")
        killed = rekindle.begin("kill", "buffers")
        rekindle.let_go("down-restored")
        with pytest.raises(CommandError):
            command.end()
        killed.end()
        rekindle.wait_end("buffers")
        assert_nothing_sleeps(rekindle)
