"""CUDA IPC between processes of one program: memory and events that several have, also over images."""

import os
import signal
import sys
from pathlib import Path

import pytest
from rekindle import Rekindle

PROGRAMS = Path(__file__).parent / "ipc"
RELAY, CODES, ORPHAN, LATE, MEET, SHAREABLE = (PROGRAMS / f"{name}.py" for name in ("relay", "codes", "orphan", "late", "meet", "shareable"))


class Scene:
    """Relays, of which all that is ever told of a step is the same."""

    def __init__(self, rekindle, processes=2, program=RELAY, gpu=None):
        self.rekindle, self.processes, self.program, self.known = rekindle, processes, program, {}
        self.gpu = gpu or rekindle.gpu

    def begin(self, name, *options):
        arguments = ("--gpu", self.gpu, "--", sys.executable, self.program, self.processes)
        self.rekindle("run", "-d", "--name", name, *options, *arguments)
        self.goes_on(name)
        return self

    def steps(self, name):
        """The steps of this run, which are in a row and have what they always have."""
        lines = [line.split() for line in self.rekindle.lines(name)]
        steps = [(int(line[0]), line[1]) for line in lines if line[0].isdigit()]
        for (step, found), before in zip(steps[1:], steps):
            assert step == before[0] + 1
            assert self.known.setdefault(step, found) == found, step
        return [step for step, _ in steps]

    def goes_on(self, name):
        before = len(self.steps(name))
        self.rekindle.wait(lambda: len(self.steps(name)) > before + 3, f"steps of {name}")

    def follows(self, name, before):
        self.goes_on(name)
        assert self.steps(name)[0] == before[-1] + 1


@pytest.mark.parametrize("late", ["0", "0.05"])
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_whose_kernels_wait_for_each_other_come_to_a_stand(rekindle, processes, late):
    scene = Scene(rekindle, processes, MEET).begin("a", "--env", f"MEET_LATE={late}")
    for number in range(6):
        report = rekindle.json("checkpoint", "a", "--to", f"going-{number}", "--leave-running", limit=20)
        assert report["gpu_processes"] == processes
        scene.goes_on("a")
    rekindle("checkpoint", "a", "--to", "stopped", "--stop", limit=20)
    before = scene.steps("a")
    for image in ("going-5", "stopped"):
        rekindle.restore(image, f"from-{image}")
        scene.goes_on(f"from-{image}")
    assert scene.steps("from-stopped")[0] == before[-1] + 1


@pytest.mark.parametrize("graphs", ["", "1"], ids=["kernels", "graphs"])
@pytest.mark.parametrize("processes", [2, 3])
def test_memory_and_events_are_shared_again_after_a_restore(rekindle, processes, graphs):
    scene = Scene(rekindle, processes).begin("a", "--env", f"RELAY_GRAPHS={graphs}")
    rekindle("checkpoint", "a", "--to", "first", "--stop")
    before = scene.steps("a")
    # Two of one image beside each other have nothing of each other.
    for name in ("b", "c"):
        rekindle.restore("first", name)
    for name in ("b", "c"):
        scene.follows(name, before)
    rekindle("kill", "b")
    rekindle("checkpoint", "c", "--to", "second", "--stop")
    before = scene.steps("c")
    rekindle("rmi", "first")
    rekindle("verify", "second")
    rekindle.restore("second", "d")
    scene.follows("d", before)


def test_what_is_shared_is_in_the_image_once(rekindle):
    size = 24 << 20
    Scene(rekindle, 3).begin("a", "--env", f"RELAY_BYTES={size}")
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    assert size <= rekindle.json("inspect", "x")["sizes"]["gpu"] < 2 * size


def test_they_go_on_while_their_image_is_written(rekindle):
    scene = Scene(rekindle).begin("a", "--env", f"RELAY_BYTES={24 << 20}")
    for image in ("one", "two"):
        rekindle("checkpoint", "a", "--to", image, "--leave-running", "--prove")
        scene.goes_on("a")
    rekindle("kill", "a")
    for image in ("one", "two"):
        rekindle.restore(image, f"from-{image}")
        scene.goes_on(f"from-{image}")


def test_nobody_goes_on_before_the_memory_of_others_is_there():
    with Rekindle(REKINDLE_FAULT="loading-begun:hang") as rekindle:
        scene = Scene(rekindle).begin("a")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        before = scene.steps("a")
        rekindle.restore("x", "b")
        rekindle.reached("loading-begun")
        assert scene.steps("b") == []
        # Another takes the place of each, and the memory is shared by those.
        workers = rekindle.sandbox("b")["workers"]
        os.kill(workers[0], signal.SIGKILL)
        rekindle.wait(lambda: set(workers) - set(rekindle.sandbox("b")["workers"]), "another in its place")
        rekindle.let_go("loading-begun")
        scene.follows("b", before)


def test_a_handle_is_good_while_its_owner_is_loading():
    with Rekindle(REKINDLE_FAULT="loading-begun:hang") as rekindle:
        rekindle.run("a", sys.executable, LATE)
        rekindle.wait(lambda: len(rekindle.lines("a")) > 2, "some times")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        before = rekindle.lines("a")[-1].split()
        rekindle.restore("x", "b")
        rekindle.reached("loading-begun")
        rekindle.let_go("loading-begun")
        rekindle.wait(lambda: len(rekindle.lines("b")) > 2, "more times")
        assert [line.split()[0] for line in rekindle.lines("b")[:2]] == [str(int(before[0]) + number) for number in (1, 2)]
        assert {line.split()[1] for line in rekindle.lines("b")} == {before[1]}


def test_what_the_owner_has_let_go_of_is_kept_by_who_uses_it(rekindle):
    rekindle.run("a", sys.executable, ORPHAN)
    rekindle.wait(lambda: len(rekindle.lines("a")) >= 3, "the owner's end")
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    before = rekindle.lines("a")
    rekindle.restore("x", "b")
    rekindle.wait(lambda: len(rekindle.lines("b")) >= 2, "what it has")
    assert set(rekindle.lines("b")) == {before[-1]}
    rekindle("checkpoint", "b", "--to", "y", "--stop")
    rekindle.restore("y", "c")
    rekindle.wait(lambda: len(rekindle.lines("c")) >= 2, "what it has")
    assert set(rekindle.lines("c")) == {before[-1]}


def test_the_next_daemon_finds_what_they_share(rekindle):
    scene = Scene(rekindle).begin("a")
    rekindle("shutdown")
    scene.goes_on("a")
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    before = scene.steps("a")
    rekindle.restore("x", "b")
    scene.follows("b", before)


@pytest.mark.parametrize("level", ["gpu", "host", "disk"])
def test_memory_and_events_are_shared_again_after_sleep(rekindle, level):
    scene = Scene(rekindle, 3).begin("a")
    for _ in range(2):
        rekindle("sleep", "a", "--level", level)
        scene.goes_on("a")
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    before = scene.steps("a")
    rekindle.restore("x", "b")
    scene.follows("b", before)


def test_programs_that_share_contexts_have_it_too(rekindle):
    scene = Scene(rekindle).begin("a", "--share", "team")
    scene.goes_on("a")


CODES_WANTED = """\
get 0
get-again-same 1
get-inside-same 1
get-nowhere 1
get-pinned 1
get-managed 1
get-pooled 1
open-own 201
open-flags 1
open-zeros 1
close-own 1
event-with-time 1
event-get-plain 400
event-get 0
event-open-own 201
event-open-zeros 205
event-query-unrecorded 0
event-elapsed 400
open-freed 1
open-twice-same 1
range 1 4194304
export-again 1
free 1
close 0
"""


def test_what_cannot_be_done_has_the_drivers_codes(rekindle):
    rekindle("run", "-d", "--name", "a", "--gpu", rekindle.gpu, "--", sys.executable, CODES, "wait")
    rekindle.wait(lambda: any(line.startswith("handle") for line in rekindle.lines("a")), "all codes")
    lines = rekindle.lines("a")
    assert lines[:24] == CODES_WANTED.splitlines()
    found = dict(line.split(" ", 1) for line in lines)
    assert found["close-inside"] == "1" and found["close-last"] == "0" and found["close-once-more"] == "1"
    first, second, third = found["smalls"].split()
    assert first == third == found["small"] != second
    assert found["child-ended"] == "0"
    # The handle is good, for processes of that program alone.
    rekindle("run", "--name", "b", "--gpu", rekindle.gpu, "--", sys.executable, CODES, found["handle"])
    assert rekindle.lines("b") == ["open-of-another-program 1"]


def test_numba_shares_arrays(rekindle):
    def steps(name):
        """What was found at each step; numba prints warnings too."""
        return [line.split() for line in rekindle.lines(name) if line[:1].isdigit()]

    rekindle.run("a", sys.executable, PROGRAMS / "arrays.py")
    rekindle.wait(lambda: len(steps("a")) >= 2, "some sums")
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    before = steps("a")
    rekindle.restore("x", "b")
    rekindle.wait(lambda: len(steps("b")) >= 2, "more sums")
    assert int(steps("b")[0][0]) == int(before[-1][0]) + 1
    assert all(found == "right" for _, found in [*before, *steps("b")])


@pytest.mark.parametrize("processes", [2, 3])
def test_memory_and_pools_that_are_handed_on_as_descriptors_are_shared_again_after_a_restore(rekindle, processes):
    late = rekindle.root / "late"
    scene = Scene(rekindle, processes, SHAREABLE).begin("a", "--env", f"SHAREABLE_LATE={late}")
    rekindle("checkpoint", "a", "--to", "running", "--leave-running")
    scene.goes_on("a")
    rekindle("checkpoint", "a", "--to", "first", "--stop")
    before = scene.steps("a")
    for name in ("b", "c"):
        rekindle.restore("first", name)
    for name in ("b", "c"):
        scene.follows(name, before)
    # Descriptors that came out of the image are good for a process that begins now.
    late.touch()
    for name in ("b", "c"):
        rekindle.wait(lambda name=name: "late" in rekindle.lines(name), f"the late process of {name}")
    rekindle("kill", "b")
    rekindle("checkpoint", "c", "--to", "second", "--stop")
    before = scene.steps("c")
    rekindle.restore("second", "d")
    scene.follows("d", before)
    rekindle.restore("running", "e")
    scene.goes_on("e")


def test_what_is_handed_on_as_a_descriptor_is_in_the_image_once(rekindle):
    size = 24 << 20
    Scene(rekindle, 3, SHAREABLE).begin("a", "--env", f"SHAREABLE_BYTES={size}")
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    assert size <= rekindle.json("inspect", "x")["sizes"]["gpu"] < 2 * size


@pytest.mark.parametrize("level", ["gpu", "host", "disk"])
def test_what_is_handed_on_as_a_descriptor_is_shared_again_after_sleep(rekindle, level):
    scene = Scene(rekindle, 2, SHAREABLE).begin("a")
    for _ in range(2):
        rekindle("sleep", "a", "--level", level)
        scene.goes_on("a")
