"""Programs with several processes that use the GPU move to another GPU, all of them or none, whatever dies meanwhile."""

import contextlib
import os
import signal
import sys

import pytest
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon
from test_ipc import Scene as Relays
from test_migration import FIRST, SECOND, WAYS, fails, nothing_is_left, set_fault
from test_nodes import Node
from test_processes import COUNTERS, Scene

# Until it is said, all go on where they were; from then on there.
BEFORE = ["migrate-begun", "migrate-quiesced", "migrate-saved", "migrate-restored", "migrate-parted", "migrate-handed-over", "migrate-together"]
AFTER = ["migrate-said", "migrate-resumed", "migrate-noted"]
NAMES = {Scene: "apart", Relays: "shared"}
SCENES = pytest.mark.parametrize("scene", NAMES, ids=NAMES.get)
# What processes share matters where it is saved and made anew, and where they are told to go on together.
FAILURES = [
    *((Scene, point, "direct") for point in BEFORE),
    *((Scene, point, "host") for point in ("migrate-draining", "migrate-restored")),
    *((Relays, point, "direct") for point in ("migrate-saved", "migrate-restored", "migrate-together")),
    (Relays, "migrate-draining", "host"),
]
DEATHS = [*((Scene, point) for point in [*BEFORE, *AFTER]), *((Relays, point) for point in ("migrate-restored", "migrate-together", "migrate-said"))]


def settled(rekindle, scene, gpu, problem=None):
    """All go on there, each with one worker, and nothing else is left."""
    scene.goes_on("a")
    row = rekindle.sandbox("a")
    assert (row["gpu"], row["state"]) == (gpu, "running")
    assert problem in row["problem"] if problem else row["problem"] is None, row["problem"]
    rekindle.wait(lambda: len(rekindle.sandbox("a")["workers"]) == scene.processes, "a worker for each")
    assert nothing_is_left(rekindle)


@SCENES
@pytest.mark.parametrize("way", WAYS)
def test_all_move_there_and_back(rekindle, scene, way):
    scene = scene(rekindle, 3).begin("a")
    before = rekindle.sandbox("a")
    for there in (SECOND, FIRST, SECOND):
        report = rekindle.json("migrate", "a", "--gpu", there, *WAYS[way])
        assert (report["way"], report["gpu"]) == (way, there) and report["bytes"] > 0
        settled(rekindle, scene, there)
    assert rekindle.sandbox("a")["pid"] == before["pid"]
    # What they are there, they are in images, asleep, and for the next daemon.
    rekindle("sleep", "a")
    scene.goes_on("a")
    kill_daemon(rekindle)
    settled(rekindle, scene, SECOND)
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    steps = scene.steps("a")
    rekindle("restore", "x", "--name", "b", "--gpu", FIRST, "-d")
    scene.follows("b", steps)


def test_what_stays_as_it_is_is_copied_ahead_of_each(rekindle):
    scene = Scene(rekindle, 2).begin("a")
    first, *rest = rekindle.json("migrate", "a", "--gpu", SECOND, "--rounds", 4)["rounds"]
    assert rest and first["bytes"] > 0 and first["stopped_us"] < first["duration_us"]
    settled(rekindle, scene, SECOND)


@pytest.mark.parametrize(("scene", "point", "way"), FAILURES, ids=NAMES.get)
def test_a_step_that_fails_leaves_all_where_they_were(scene, point, way):
    with Rekindle() as rekindle:
        scene = scene(rekindle).begin("a")
        set_fault(rekindle, point)
        assert "injected" in fails(rekindle, "migrate", "a", "--gpu", SECOND, *WAYS[way])
        settled(rekindle, scene, FIRST)
        set_fault(rekindle, "nothing")
        rekindle("migrate", "a", "--gpu", SECOND, *WAYS[way])
        settled(rekindle, scene, SECOND)


@pytest.mark.parametrize(("scene", "point"), DEATHS, ids=NAMES.get)
def test_a_daemon_that_is_killed_leaves_all_here_or_all_there(scene, point):
    with Rekindle() as rekindle:
        scene = scene(rekindle).begin("a")
        set_fault(rekindle, f"{point}:kill")
        rekindle("migrate", "a", "--gpu", SECOND, check=False)
        del rekindle.environment["REKINDLE_FAULT"]
        there = point in AFTER
        settled(rekindle, scene, SECOND if there else FIRST, None if there else "goes on where it was")
        rekindle("migrate", "a", "--gpu", FIRST if there else SECOND)
        settled(rekindle, scene, FIRST if there else SECOND)


# The first one's worker, or the last one's.
@pytest.mark.parametrize(
    ("point", "victim"),
    [("migrate-begun", 1), ("migrate-restored", 0), ("migrate-restored", 1), ("migrate-parted", 0), ("migrate-handed-over", 1)],
)
def test_a_killed_worker_on_the_other_gpu_leaves_all_where_they_were(point, victim):
    with Rekindle() as rekindle:
        scene = Scene(rekindle).begin("a")
        here = scene.workers("a")
        set_fault(rekindle, f"{point}:hang")
        moving = rekindle.begin("migrate", "a", "--gpu", SECOND)
        rekindle.reached(point)
        there = [worker for worker in scene.workers("a") if worker not in here]
        os.kill(there[victim], signal.SIGKILL)
        rekindle.let_go(point)
        with pytest.raises(CommandError, match="worker"):
            moving.end()
        settled(rekindle, scene, FIRST)
        assert scene.workers("a") == here


@pytest.mark.parametrize("point", ["migrate-together", "migrate-said"])
def test_a_worker_that_dies_when_all_go_on_there_is_the_loss_of_its_process(point):
    with Rekindle() as rekindle:
        scene = Scene(rekindle).begin("a")
        here = scene.workers("a")
        set_fault(rekindle, f"{point}:hang")
        moving = rekindle.begin("migrate", "a", "--gpu", SECOND)
        rekindle.reached(point)
        there = [worker for worker in scene.workers("a") if worker not in here]
        os.kill(there[1], signal.SIGKILL)
        rekindle.let_go(point)
        moving.end()
        rekindle.wait(lambda: any("failed" in line for line in rekindle.lines("a")), "what its process sees")
        scene.goes_on("a", [0])
        assert rekindle.sandbox("a")["gpu"] == SECOND
        rekindle.wait(lambda: len(scene.workers("a")) == 1, "nothing to be left of it")


@pytest.mark.parametrize("point", ["migrate-parted", "migrate-handed-over"])
def test_a_worker_that_dies_once_it_has_parted_is_not_missed(point):
    with Rekindle() as rekindle:
        scene = Scene(rekindle).begin("a")
        here = scene.workers("a")
        set_fault(rekindle, f"{point}:hang")
        moving = rekindle.begin("migrate", "a", "--gpu", SECOND)
        rekindle.reached(point)
        os.kill(here[0], signal.SIGKILL)
        rekindle.let_go(point)
        moving.end()
        settled(rekindle, scene, SECOND)


@pytest.mark.parametrize("point", ["migrate-quiesced", "migrate-restored", "migrate-handed-over", "migrate-said"])
def test_a_program_that_is_killed_leaves_nothing(point):
    with Rekindle() as rekindle:
        Scene(rekindle).begin("a")
        set_fault(rekindle, f"{point}:hang")
        moving = rekindle.begin("migrate", "a", "--gpu", SECOND)
        rekindle.reached(point)
        rekindle("kill", "a", check=False)
        rekindle.let_go(point)
        try:
            moving.end()
        except CommandError as error:
            assert "ended" in error.message
        rekindle.wait_end("a")
        rekindle.wait(lambda: nothing_is_left(rekindle), "what went through memory to be gone")


def test_a_process_that_begins_to_use_the_gpu_meanwhile_has_all_stay():
    with Rekindle() as rekindle:
        late = rekindle.root / "late"
        begin = f"(while [ ! -e {late} ]; do sleep 0.01; done; exec {sys.executable} {COUNTERS} 2 1) & exec {sys.executable} {COUNTERS} 1"
        rekindle.run("a", "sh", "-c", begin)
        scene = Scene(rekindle)
        scene.goes_on("a", [0])
        set_fault(rekindle, "migrate-saved:hang")
        moving = rekindle.begin("migrate", "a", "--gpu", SECOND)
        rekindle.reached("migrate-saved")
        late.touch()
        scene.goes_on("a", [1])
        rekindle.let_go("migrate-saved")
        with pytest.raises(CommandError, match="another process of it has begun to use the GPU meanwhile"):
            moving.end()
        settled(rekindle, scene, FIRST)
        rekindle("migrate", "a", "--gpu", SECOND)
        settled(rekindle, scene, SECOND)


@contextlib.contextmanager
def nodes(there=None):
    with Node() as here, Node(**(there or {})) as other:
        here.knows("there", other)
        other.knows("here", here)
        yield here, other


def runs_at(node, scene, known):
    """All go on there, as they would have elsewhere."""
    at = type(scene)(node, scene.processes)
    at.known = known
    at.goes_on("a")
    row = node.sandbox("a")
    assert (row["state"], row["problem"], len(row["workers"])) == ("running", None, scene.processes)


@SCENES
def test_all_move_to_another_node_and_back(scene):
    with nodes() as (here, there):
        scene = scene(here, 3).begin("a")
        scene.steps("a")
        for node, name, other in ((here, "there", there), (there, "here", here)):
            report = node.json("migrate", "a", "--to", name)
            assert report["bytes"] > 0 and not [row for row in node.sandboxes() if row["pid"]]
            runs_at(other, scene, scene.known)
        for node in (here, there):
            node.wait(node.is_clean, "nothing to be left of the migration")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_dies_at_the_other_node_costs_a_try_there(victim):
    with nodes({"REKINDLE_FAULT": "restore-complete:hang"}) as (here, there):
        scene = Scene(here).begin("a")
        moving = here.begin("migrate", "a", "--to", "there")
        there.reached("restore-complete")
        os.kill(there.sandbox("a")["workers"][victim], signal.SIGKILL)
        there.let_go("restore-complete")
        try:
            moving.end()
        except CommandError as error:
            assert "worker" in error.message
            runs_at(here, scene, scene.known)
            assert not [row for row in there.sandboxes() if row["pid"]]
        else:
            runs_at(there, scene, scene.known)
        for node in (here, there):
            node.wait(node.is_clean, "nothing to be left of the migration")


def test_a_worker_that_dies_here_leaves_the_others_here():
    with nodes() as (here, there):
        scene = Scene(here).begin("a")
        here.set_fault("quiesced:hang")
        moving = here.begin("migrate", "a", "--to", "there")
        here.reached("quiesced")
        os.kill(scene.workers("a")[1], signal.SIGKILL)
        here.let_go("quiesced")
        # A daemon that has not started a worker does not see how it ended, and its process may have ended too by then.
        with pytest.raises(CommandError, match=r"worker|process \d+ of the program ended"):
            moving.end()
        scene.goes_on("a", [0])
        assert not [row for row in there.sandboxes() if row["pid"]]
