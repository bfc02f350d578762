"""A running program with several GPUs moves: each of its GPUs to the one at its place, all of them or none."""

import os
import signal
import sys

import pytest
from exchange import Exchange
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon
from test_ipc import Scene as Relays
from test_migration import WAYS, fails, nothing_is_left, set_fault
from test_nodes import Node
from test_several_gpus import PROGRAM as AT_REST

FIRST, OTHERS, SWAPPED, ONE_STAYS = (f"emulated:{numbers}" for numbers in ("0,1", "2,3", "1,0", "0,2"))
BEFORE = ["migrate-begun", "migrate-quiesced", "migrate-saved", "migrate-restored", "migrate-parted", "migrate-handed-over"]
AFTER = ["migrate-resumed", "migrate-noted"]


def settled(rekindle, program, gpu, problem=None):
    """It goes on there, with one worker, and nothing else is left."""
    program.goes_on()
    row = program.row()
    assert (row["gpu"], row["state"]) == (gpu, "running")
    assert problem in row["problem"] if problem else row["problem"] is None, row["problem"]
    rekindle.wait(lambda: len(program.row()["workers"]) == 1, "one worker")
    assert nothing_is_left(rekindle)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("there", [OTHERS, SWAPPED, ONE_STAYS])
def test_what_is_on_two_gpus_at_rest_is_on_two_others(rekindle, there, way):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--name", "program", "--gpu", FIRST, "--", sys.executable, AT_REST, go)
    assert rekindle.wait_lines("program", 1)[:1] == ["ready"], rekindle.lines("program")
    report = rekindle.json("migrate", "program", "--gpu", there, *WAYS[way])
    assert (report["way"], report["from"], report["gpu"]) == (way, FIRST, there) and report["bytes"] > 0
    go.touch()
    assert rekindle.wait_end("program")[-1] == "ok", rekindle.lines("program")


def test_a_program_that_uses_both_all_the_time_never_notices(rekindle):
    program = Exchange(rekindle, FIRST)
    before = program.row()
    for trip, there in enumerate([OTHERS, "emulated:3,2", "emulated:3,1", FIRST, ONE_STAYS, SWAPPED]):
        program.goes_on()
        report = rekindle.json("migrate", program.name, "--gpu", there, *WAYS["host" if trip % 2 else "direct"])
        assert report["gpu"] == there and report["rounds"][-1]["stopped_us"] == report["stopped_us"]
        settled(rekindle, program, there)
    assert program.row()["pid"] == before["pid"]
    # As what it is there, it is in images, asleep, and for the next daemon.
    rekindle("sleep", program.name)
    program.goes_on()
    kill_daemon(rekindle)
    settled(rekindle, program, SWAPPED)
    program.ends()


def test_what_stays_where_it_is_is_not_copied(rekindle):
    program = Exchange(rekindle, FIRST)
    program.goes_on()
    (all_of_it,) = rekindle.json("migrate", program.name, "--gpu", OTHERS)["rounds"]
    (one,) = rekindle.json("migrate", program.name, "--gpu", "emulated:2,1")["rounds"]
    assert one["bytes"] == pytest.approx(all_of_it["bytes"] / 2, rel=0.2)
    program.ends()


@pytest.mark.parametrize("way", WAYS)
def test_what_processes_share_on_one_of_them_they_share_there(rekindle, way):
    scene = Relays(rekindle, 3, gpu=FIRST).begin("a", "--env", "RELAY_GPU=1")
    # The GPU that they use moves, then the other one, and then both.
    for there in ("emulated:0,2", "emulated:3,2", SWAPPED):
        report = rekindle.json("migrate", "a", "--gpu", there, *WAYS[way])
        assert (report["way"], report["gpu"]) == (way, there) and report["bytes"] > 0
        scene.goes_on("a")
        rekindle.wait(lambda: len(rekindle.sandbox("a")["workers"]) == 3, "a worker for each")
    assert rekindle.sandbox("a")["problem"] is None and nothing_is_left(rekindle)


def test_what_nobody_writes_to_is_copied_to_each_of_them_ahead(rekindle):
    program = Exchange(rekindle, FIRST)
    program.goes_on()
    still = 2 * 10_000_000
    ahead, *_, last = rekindle.json("migrate", program.name, "--gpu", OTHERS, "--rounds", 4)["rounds"]
    assert ahead["bytes"] > still > 2 * last["bytes"] and ahead["stopped_us"] < ahead["duration_us"]
    phases = rekindle.json("trace", program.name, "--svg", rekindle.root / "picture.svg")["traces"][0]["phases"]
    assert sum(phase.get("from", {}).get("GPU cache", 0) for phase in phases if phase["name"] == "GPU memory") > still
    program.ends()


@pytest.mark.parametrize("point", BEFORE)
def test_a_step_that_fails_leaves_it_where_it_was(point):
    with Rekindle() as rekindle:
        program = Exchange(rekindle, FIRST)
        set_fault(rekindle, point)
        assert "injected" in fails(rekindle, "migrate", program.name, "--gpu", ONE_STAYS)
        settled(rekindle, program, FIRST)
        set_fault(rekindle, "nothing")
        rekindle("migrate", program.name, "--gpu", ONE_STAYS)
        settled(rekindle, program, ONE_STAYS)
        program.ends()


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_daemon_that_is_killed_leaves_it_here_or_there(point):
    with Rekindle() as rekindle:
        program = Exchange(rekindle, FIRST)
        set_fault(rekindle, f"{point}:kill")
        rekindle("migrate", program.name, "--gpu", ONE_STAYS, check=False)
        del rekindle.environment["REKINDLE_FAULT"]
        there = point in AFTER
        settled(rekindle, program, ONE_STAYS if there else FIRST, None if there else "goes on where it was")
        program.ends()


@pytest.mark.parametrize(("point", "whose"), [("migrate-restored", "there"), ("migrate-handed-over", "there"), ("migrate-parted", "here")])
def test_a_worker_that_is_killed_leaves_one_program(point, whose):
    """Where it was if it is the one there that died, else there."""
    with Rekindle() as rekindle:
        program = Exchange(rekindle, FIRST)
        (here,) = program.row()["workers"]
        set_fault(rekindle, f"{point}:hang")
        moving = rekindle.begin("migrate", program.name, "--gpu", ONE_STAYS)
        rekindle.reached(point)
        (there,) = set(program.row()["workers"]) - {here}
        os.kill(there if whose == "there" else here, signal.SIGKILL)
        rekindle.let_go(point)
        if whose == "there":
            with pytest.raises(CommandError, match="worker"):
                moving.end()
        else:
            moving.end()
        settled(rekindle, program, FIRST if whose == "there" else ONE_STAYS)
        program.ends()


def test_what_cannot_move_is_refused(rekindle):
    program = Exchange(rekindle, FIRST)

    def refusal(gpu):
        return fails(rekindle, "migrate", program.name, "--gpu", gpu)

    assert "names GPU 2 twice" in refusal("emulated:2,2")
    assert "sees 2 GPUs, and emulated:2 is 1" in refusal("emulated:2")
    assert "sees 2 GPUs, and emulated:2,3,4 is 3" in refusal("emulated:2,3,4")
    assert "already" in refusal(FIRST)
    assert "already" in refusal("emulated:devices=2")
    assert "same model" in refusal("emulated:2,3,sms=8")
    assert "MB are free on emulated:2,3,memory=64M,context=60M's GPU 0" in refusal("emulated:2,3,memory=64M,context=60M")
    settled(rekindle, program, FIRST)
    program.ends()


class Nodes:
    """Two nodes that know each other: the other one has three GPUs."""

    def __init__(self, there):
        self.here, self.there = Node(), Node(**there)

    def __enter__(self):
        self.here.__enter__()
        self.there.__enter__()
        self.here.knows("there", self.there)
        self.there.knows("here", self.here)
        return self

    def __exit__(self, *error):
        for node in (self.there, self.here):
            node.environment.pop("REKINDLE_FAULT", None)
            node.__exit__(*error)


HOG = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from gpu import call, open_device
open_device()
call("cuMemAlloc", 1 << 30)
print("ready", flush=True)
time.sleep(1000)
"""


def test_it_moves_to_the_gpus_of_another_node_that_have_most_memory_free(tmp_path):
    settings = f"memory=2G,common={tmp_path}"
    with Nodes({"REKINDLE_EMULATED": f"devices=3,{settings}"}) as nodes:
        program = Exchange(nodes.here, FIRST)
        features = AT_REST.parent.parent / "features"
        nodes.there("run", "-d", "--name", "hog", "--gpu", f"emulated:1,{settings}", "--", sys.executable, "-c", HOG, features)
        nodes.there.wait_lines("hog", 1)
        program.goes_on()
        report = nodes.here.json("migrate", program.name, "--to", "there")
        assert report["gpu"] == f"emulated:0,2,{settings}"
        assert nodes.there.sandbox(program.name)["gpu"] == report["gpu"]
        steps = program.steps()
        nodes.there.wait(lambda: program.steps() > steps + 5, "it to go on there")
        # And back, to those that are named.
        back = nodes.there.json("migrate", program.name, "--to", "here", "--gpu", "emulated:3,1")
        assert back["gpu"] == "emulated:3,1"
        settled(nodes.here, program, "emulated:3,1")
        program.ends()


def test_another_node_with_too_few_gpus_says_so_and_it_goes_on_here():
    with Nodes({}) as nodes:
        program = Exchange(nodes.here, FIRST)
        program.goes_on()
        assert "it needs 2 GPUs and this one has 1" in fails(nodes.here, "migrate", program.name, "--to", "there")
        settled(nodes.here, program, FIRST)
        program.ends()


@pytest.mark.parametrize("point", ["node-stopped", "node-held", "node-told"])
def test_a_daemon_that_is_killed_leaves_it_at_one_node(point):
    with Nodes({"REKINDLE_EMULATED": "devices=2"}) as nodes:
        program = Exchange(nodes.here, FIRST)
        nodes.here.set_fault(f"{point}:kill")
        nodes.here("migrate", program.name, "--to", "there", check=False)
        nodes.here.set_fault()
        is_there = point == "node-told"
        node, other = (nodes.there, nodes.here) if is_there else (nodes.here, nodes.there)
        # The next daemon lets a program go on that was held.
        nodes.here.sandboxes()
        steps = program.steps()
        node.wait(lambda: program.steps() > steps + 5, "it to go on")
        other.wait(lambda: not any(row["name"] == program.name and row["pid"] for row in other.sandboxes()), "one of them alone")
        program.ends(at=node)
