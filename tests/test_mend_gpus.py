"""Programs with several GPUs do not see the loss of their worker, or of one GPU's context; what they compute is the same to the last bit."""

import os
import random
import signal
import sys
import time

import pytest
from exchange import Exchange, Mended
from rekindle import Rekindle
from test_features import FEATURES
from test_ipc import Scene
from test_migration_gpus import FIRST, ONE_STAYS
from test_several_gpus import MEET
from test_several_gpus import PROGRAM as AT_REST


def is_on(program):
    program.rekindle.wait(lambda: program.row()["mending"]["on"], "mending to be on")


def is_mended(program, times):
    def is_so():
        row = program.row()
        assert row["problem"] is None, row["problem"]
        assert row["pid"], program.rekindle.lines(program.name)
        return row["mending"]["mended"] >= times and row["state"] == "running"

    program.rekindle.wait(is_so, f"it to be mended {times} times")


@pytest.mark.parametrize("gpu", [FIRST, "emulated:1,0"])
def test_what_is_at_rest_goes_on(rekindle, gpu):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--mend", "--name", "program", "--gpu", gpu, "--", sys.executable, AT_REST, go)
    assert rekindle.wait_lines("program", 1)[:1] == ["ready"], rekindle.lines("program")
    program = Mended(rekindle, "program")
    mending = lambda: program.row()["mending"]
    rekindle.wait(lambda: mending()["on"] and mending()["journal_bytes"] == 0, "a base with all that it has asked for")
    program.kill_worker()
    is_mended(program, 1)
    go.touch()
    assert rekindle.wait_end("program") == ["ready", "ok"]


def meeting(rekindle, *settings):
    options = ("--mend", *(word for setting in settings for word in ("--env", setting)))
    return Scene(rekindle, 2, MEET, gpu=FIRST).begin("meeting", *options), Mended(rekindle, "meeting")


@pytest.mark.parametrize("late", ["0", "0.02"])
@pytest.mark.parametrize("threads", ["one", "each"])
def test_kernels_that_wait_for_each_other_are_launched_once_more(rekindle, threads, late):
    scene, program = meeting(rekindle, f"MEET_THREADS={threads}", f"MEET_LATE={late}")
    moment = random.Random(threads)
    for times in range(4):
        is_on(program)
        time.sleep(moment.uniform(0, 0.1))
        program.kill_worker()
        is_mended(program, times + 1)
        scene.goes_on(program.name)


def test_code_that_is_loaded_behind_kernels_that_wait_holds_up_nobody(rekindle):
    scene, program = meeting(rekindle, "MEET_LOADS=1", "MEET_LATE=0.02")
    for _ in range(5):
        is_on(program)
        scene.goes_on(program.name)


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_are_killed_at_any_moment(rekindle, seed):
    program, moment = Exchange(rekindle, FIRST, "--mend"), random.Random(seed)
    for times in range(5):
        program.goes_on(3)
        is_on(program)
        time.sleep(moment.uniform(0, 0.1))
        program.kill_worker()
        is_mended(program, times + 1)
    program.goes_on()
    program.ends()


@pytest.mark.parametrize("point", ["mend-taking", "mend-prepared", "mend-taken", "mend-replaying", "mend-replayed"])
def test_a_worker_is_killed_while_bases_are_taken_or_what_was_asked_for_is_done_once_more(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        rekindle.let_go(point)
        program = Exchange(rekindle, FIRST, "--mend")
        program.goes_on(3)
        is_on(program)
        rekindle.hold_again(point)
        lost = []
        if "repla" in point:
            lost = program.row()["workers"]
            program.kill_worker()
        rekindle.reached(point)
        (worker,) = (worker for worker in program.row()["workers"] if worker not in lost)
        os.kill(worker, signal.SIGKILL)
        rekindle.let_go(point)
        is_mended(program, 1)
        program.goes_on()
        program.ends()


def test_the_lost_context_of_one_gpu_is_mended_with_all(rekindle):
    program = Exchange(rekindle, FIRST, "--mend")
    for times in range(2):
        program.goes_on(3)
        is_on(program)
        (program.place / "trip").touch()
        is_mended(program, times + 1)
    program.goes_on()
    program.ends()


FAULTY = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from gpu import Module, call, driver, open_device
contexts = [open_device(index) for index in range(2)]
module = Module('extern "C" __global__ void write(int *word) { *word = 1; }')
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.005)
module.write(1, 1, 1 << 40)
for context in contexts[::-1]:
    call("cuCtxSetCurrent", context)
    print(driver.cuCtxSynchronize()[0].name, flush=True)
"""


def test_a_fault_of_its_own_is_told_once_it_has_come_twice(rekindle):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--mend", "--name", "faulty", "--gpu", FIRST, "--", sys.executable, "-c", FAULTY, FEATURES, go)
    assert rekindle.wait_lines("faulty", 1) == ["ready"]
    rekindle.wait(lambda: rekindle.sandbox("faulty")["mending"]["on"], "mending to be on")
    go.touch()
    _, second, first = rekindle.wait_end("faulty")
    assert second.startswith("CUDA_ERROR_") and first == "CUDA_SUCCESS"
    row = rekindle.sandbox("faulty")
    assert row["exit_code"] == 0 and row["mending"]["mended"] == 1


def test_the_copies_lie_on_the_host_where_the_gpus_have_no_room():
    with Rekindle() as rekindle:
        program = Exchange(rekindle, "emulated:0,1,memory=64M,context=40M", "--mend")
        rekindle.wait(lambda: program.row()["mending"]["on"] and program.row()["mending"]["base_on_host"], "copies on the host")
        program.kill_worker()
        is_mended(program, 1)
        program.goes_on()
        program.ends()


def test_it_goes_on_after_a_move_and_from_an_image(rekindle):
    program = Exchange(rekindle, FIRST, "--mend")
    is_on(program)
    rekindle("migrate", program.name, "--gpu", ONE_STAYS)
    program.goes_on()
    is_on(program)
    program.kill_worker()
    is_mended(program, 1)
    assert program.row()["gpu"] == ONE_STAYS
    rekindle("checkpoint", program.name, "--to", "image", "--stop")
    rekindle("rm", program.name)
    rekindle("restore", "image", "--name", program.name, "--gpu", FIRST, "-d")
    program.goes_on()
    is_on(program)
    before = program.row()["mending"]["mended"]
    program.kill_worker()
    is_mended(program, before + 1)
    program.goes_on()
    (program.place / "stop").touch()
    assert rekindle.wait_end(program.name)[-1] == "ok"


def test_a_program_in_a_shared_context_goes_on(rekindle):
    program = Exchange(rekindle, FIRST, "--mend", "--share", "us")
    program.goes_on(3)
    is_on(program)
    program.kill_worker()
    is_mended(program, 1)
    program.goes_on()
    program.ends()
