"""Programs do not see the loss of their workers: those are killed at any moment, and what the programs compute stays right."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle
from test_features import ALONE, FEATURES
from test_on_demand import SLOW, load, phases, set_environment

WORK = Path(__file__).parent / "mend" / "work.py"
THREADS = WORK.with_name("threads.py")
AHEAD = WORK.with_name("ahead.py")
# How long kernels are of programs that enqueue ahead.
BRIEF, LONG = 32, 1_600
# Mending does not cover CUDA arrays.
OF_ARRAYS = ["arrays", "surfaces", "textures"]
KINDS = ["kernels", "uploads", "waits", "lists", "streams", "pinned_memory", "module_globals", "allocates", "graphs"]


class Program:
    """One that is to go on."""

    def __init__(self, rekindle, *kinds, name="work", options=("--mend",), file=WORK):
        self.rekindle, self.name, self.place = rekindle, name, rekindle.root / name
        self.place.mkdir()
        self.rekindle("run", "-d", "--name", name, "--gpu", rekindle.gpu, *options, "--", sys.executable, file, self.place, *kinds)
        lines = rekindle.wait_lines(name, 1)
        assert lines == ["ready"], lines

    def row(self):
        return self.rekindle.sandbox(self.name)

    def mending(self):
        return self.row()["mending"]

    def is_on(self):
        return self.mending()["on"]

    def on(self):
        """Until its worker's loss would be mended."""
        self.rekindle.wait(self.is_on, "mending to be on")

    def lose(self):
        """Its worker is killed: until another one is in its place."""
        before = self.mending()["mended"]
        self.kill()
        self.mended(before + 1)

    def kill(self):
        (worker,) = self.row()["workers"]
        os.kill(worker, signal.SIGKILL)

    def mended(self, times):
        def is_mended():
            row = self.row()
            assert row["problem"] is None, row["problem"]
            assert row["pid"], self.rekindle.lines(self.name)
            return row["mending"]["mended"] >= times and row["state"] == "running"

        self.rekindle.wait(is_mended, f"{self.name} to be mended {times} times")

    def steps(self):
        try:
            return int((self.place / "steps").read_text() or 0)
        except FileNotFoundError:
            return 0

    def goes_on(self):
        """Until it has come farther."""
        before = self.steps()
        self.rekindle.wait(lambda: self.steps() > before or not self.row()["pid"], f"{self.name} to come farther")

    def pause(self):
        (self.place / "pause").touch()

    def ends(self):
        self.goes_on()
        (self.place / "stop").touch()
        lines = self.rekindle.wait_end(self.name)
        assert lines[-1].startswith("ok "), lines
        assert self.row()["exit_code"] == 0


@pytest.mark.parametrize("name", [name for name in ALONE if name not in OF_ARRAYS])
def test_features_at_rest_go_on(rekindle, name):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--mend", "--name", name, "--gpu", rekindle.gpu, "--", sys.executable, FEATURES / f"{name}.py", go)
    assert rekindle.wait_lines(name, 1)[:1] == ["ready"], rekindle.lines(name)
    # At rest a base follows that has all it has asked for.
    at_rest = lambda mending: mending["on"] and mending["journal_bytes"] == 0
    rekindle.wait(lambda: at_rest(rekindle.sandbox(name)["mending"]), "a base with all that it has asked for")
    (worker,) = rekindle.sandbox(name)["workers"]
    os.kill(worker, signal.SIGKILL)
    rekindle.wait(lambda: rekindle.sandbox(name)["mending"]["mended"] == 1 or rekindle.sandbox(name)["problem"], "it to be mended")
    assert rekindle.sandbox(name)["problem"] is None
    go.touch()
    assert rekindle.wait_end(name) == ["ready", "ok"]


def test_who_has_arrays_is_not_mended_and_says_so(rekindle):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--mend", "--name", "arrays", "--gpu", rekindle.gpu, "--", sys.executable, FEATURES / "arrays.py", go)
    assert rekindle.wait_lines("arrays", 1)[:1] == ["ready"], rekindle.lines("arrays")
    rekindle.wait(lambda: "CUDA arrays" in (rekindle.sandbox("arrays")["mending"].get("why") or ""), "the reason")
    assert not rekindle.sandbox("arrays")["mending"]["on"]
    go.touch()
    assert rekindle.wait_end("arrays") == ["ready", "ok"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_is_killed_while_it_works(rekindle, kind):
    program = Program(rekindle, kind)
    for _ in range(3):
        program.goes_on()
        program.on()
        program.lose()
    program.ends()


def test_a_program_whose_kernels_ran_ahead_of_loading_is_mended_as_any(rekindle):
    program = Program(rekindle, "lists")
    program.goes_on()
    program.pause()
    rekindle("checkpoint", "work", "--to", "image", "--stop")
    rekindle("rm", "work")
    set_environment(rekindle, **SLOW)
    rekindle("restore", "image", "--name", "work", "--gpu", rekindle.gpu, "-d")
    rekindle.reached("loading-begun")
    # The daemon holds what there is to be held before the kernel's fault, which is what the worker starts again for.
    rekindle.wait(lambda: "no copy of its GPU memory" in program.mending()["why"], "the worker to say what is to be held")
    (program.place / "pause").unlink()
    load(rekindle)
    log = lambda: "".join(path.read_text() for path in (rekindle.state / "logs").glob("*.worker-*.log"))
    rekindle.wait(lambda: "CUDA_ERROR_ILLEGAL_ADDRESS" in log(), "a kernel to come to memory that is not there")
    assert "a fault mended" in phases(rekindle, "work")
    for _ in range(2):
        program.goes_on()
        program.on()
        program.lose()
    program.ends()


@pytest.mark.parametrize(("seed", "file"), [(1, WORK), (2, WORK), (3, THREADS)])
def test_workers_are_killed_at_any_moment(rekindle, seed, file):
    lose_at_any_moment(Program(rekindle, *KINDS, file=file), seed, times=5, within=0.1)


def lose_at_any_moment(program, seed, times, within):
    """Its worker is killed so many times, each so many seconds at most after an epoch counts."""
    moment = random.Random(seed)
    # Code that is loaded ends an epoch, as each kind does when it is first done, also by a new worker.
    program.rekindle.wait(lambda: program.steps() > len(KINDS), "each kind to have been done")
    for _ in range(times):
        # Of the steps that are told of first, some were before the new worker.
        for _ in range(2):
            program.goes_on()
        program.on()
        time.sleep(moment.uniform(0, within))
        program.lose()
    program.ends()


@pytest.mark.parametrize("point", ["mend-taking", "mend-prepared", "mend-taken"])
def test_a_worker_is_killed_while_a_base_is_taken(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        rekindle.let_go(point)
        program = Program(rekindle, "kernels", "uploads")
        program.goes_on()
        program.on()
        rekindle.hold_again(point)
        rekindle.reached(point)
        program.kill()
        rekindle.let_go(point)
        program.mended(1)
        program.ends()


def test_bases_are_taken_while_the_gpu_works_and_nobody_waits(rekindle):
    # One that is brought to rest waits for its whole queue, for each base. A busy machine makes some wait too, and now and then
    # as many: three times in a row that is no chance.
    more, waited = 6, []
    for turn in range(3):
        program = Program(rekindle, LONG, "kernels", "pinned", "uploads", file=AHEAD, name=f"work-{turn}")
        program.on()
        before = program.mending()["bases"]
        rekindle.wait(lambda program=program, before=before: program.mending()["bases"] >= before + more, f"{more} bases")
        (program.place / "stop").touch()
        (ok, _, slow) = rekindle.wait_end(program.name)[-1].split()
        assert ok == "ok"
        waited.append(int(slow))
        if waited[-1] < more:
            return
    pytest.fail(f"it waited {waited} times")


@pytest.mark.parametrize(("seed", "rounds"), [(1, BRIEF), (2, LONG), (3, LONG)])
def test_workers_are_killed_at_any_moment_of_programs_that_never_rest(rekindle, seed, rounds):
    # What is freed in stream order is kept, and then the first base waits for the GPU.
    kinds = [] if rounds == BRIEF else ["kernels", "pinned", "uploads"]
    lose_at_any_moment(Program(rekindle, rounds, *kinds, file=AHEAD), seed, times=4, within=1)


@pytest.mark.parametrize("kind", ["other", "recorded", "frees", "much"])
def test_what_cannot_come_behind_a_base_waits_and_is_mended(rekindle, kind):
    program = Program(rekindle, BRIEF, "kernels", kind, file=AHEAD)
    for _ in range(3):
        program.goes_on()
        program.on()
        before = program.mending()["bases"]
        rekindle.wait(lambda before=before: program.mending()["bases"] > before, "a base")
        program.lose()
    program.ends()


@pytest.mark.parametrize("point", ["mend-cut", "mend-copied"])
def test_a_worker_is_killed_between_a_cut_and_the_epoch_that_begins_there(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        rekindle.let_go(point)
        program = Program(rekindle, LONG, "kernels", "pinned", "uploads", file=AHEAD)
        program.goes_on()
        program.on()
        for times in range(1, 3):
            rekindle.hold_again(point)
            rekindle.reached(point)
            program.kill()
            rekindle.let_go(point)
            program.mended(times)
        program.ends()


@pytest.mark.parametrize("point", ["mend-cut", "mend-copied"])
def test_a_cut_that_fails_leaves_the_epoch_before(point):
    with Rekindle(REKINDLE_FAULT=point) as rekindle:
        program = Program(rekindle, BRIEF, "kernels", "pinned", file=AHEAD)
        for _ in range(2):
            program.goes_on()
            program.on()
            program.lose()
        program.ends()


@pytest.mark.parametrize("point", ["mend-cut", "mend-copied"])
def test_a_program_whose_cuts_fail_is_brought_to_rest(point):
    with Rekindle(REKINDLE_FAULT=point) as rekindle:
        program = Program(rekindle, BRIEF, "kernels", "pinned", file=AHEAD)
        program.on()
        bases = program.mending()["bases"]
        rekindle.wait(lambda: program.mending()["bases"] >= bases + 4, "copies at rest", limit=40)
        program.on()
        program.lose()
        program.ends()


def test_a_fault_behind_a_cut_is_told_once_it_has_come_twice():
    with Rekindle(REKINDLE_FAULT="mend-cut:hang") as rekindle:
        rekindle.let_go("mend-cut")
        program = Program(rekindle, LONG, "kernels", file=AHEAD)
        program.on()
        rekindle.hold_again("mend-cut")
        rekindle.reached("mend-cut")
        (program.place / "fault").touch()
        rekindle.let_go("mend-cut")
        lines = rekindle.wait_end(program.name)
        assert any("CUDA_ERROR" in line for line in lines) and program.row()["mending"]["mended"] == 1, lines


SIGNAL = """
import os, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[3])
from gpu import Module, call, open_device, upload
from ahead import LONG
open_device()
module = Module(LONG + 'extern "C" __global__ void wait(volatile unsigned *word) { while (*word == 0); }')
word, long = upload(np.zeros(64, np.uint32)), upload(np.zeros(128, np.uint32))
stream, other = (call("cuStreamCreate", 1) for _ in range(2))
events = [call("cuEventCreate", 2) for _ in range(4)]
call("cuCtxSynchronize")
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    call("cuMemsetD32Async", word, 0, 1, stream)
    # A base is due while there is a kernel that waits, and before.
    for step in range(20):
        module.step(1, 128, long, int(sys.argv[4]), stream=stream)
        if step > 4:
            call("cuEventSynchronize", events[step % 4])
        call("cuEventRecord", events[step % 4], stream)
    module.wait(1, 1, word, stream=stream)
    until = time.monotonic() + 0.7
    while time.monotonic() < until:
        call("cuMemGetInfo")
        time.sleep(0.001)
    call("cuMemsetD32Async", word, 1, 1, other)
    began = time.monotonic()
    call("cuStreamSynchronize", stream)
    print("waited", round(time.monotonic() - began, 1), flush=True)
print("ok", flush=True)
"""


def test_a_kernel_that_waits_for_another_stream_gets_what_it_waits_for(rekindle):
    go = rekindle.root / "go"
    command = [sys.executable, "-c", SIGNAL, FEATURES, go, WORK.parent, LONG]
    rekindle("run", "-d", "--mend", "--name", "signal", "--gpu", rekindle.gpu, "--", *command)
    rekindle.wait_lines("signal", 4)
    go.touch()
    lines = rekindle.wait_end("signal")
    assert lines[0] == "ready" and lines[-1] == "ok", lines


@pytest.mark.parametrize("point", ["mend-replaying", "mend-replayed"])
def test_a_worker_is_killed_that_takes_the_place_of_a_lost_one(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        program = Program(rekindle, "kernels", "pinned_memory")
        program.goes_on()
        program.on()
        lost = program.row()["workers"]
        program.kill()
        rekindle.reached(point)
        (second,) = (worker for worker in program.row()["workers"] if worker not in lost)
        os.kill(second, signal.SIGKILL)
        rekindle.let_go(point)
        program.mended(1)
        program.ends()


CHANCE = """
import os, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from gpu import Module, call, download, open_device
open_device()
module = Module('extern "C" __global__ void clock(unsigned long long *a) { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(*a)); }')
word = call("cuMemAlloc", 8)
call("cuCtxSynchronize")
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    module.clock(1, 1, word)
    download(word, 1, np.uint64)
print("ok", flush=True)
"""


def chance(rekindle, how, *options):
    go = rekindle.root / "go"
    command = [sys.executable, "-c", CHANCE, FEATURES, go]
    rekindle("run", "-d", f"--mend={how}", "--name", "chance", "--gpu", rekindle.gpu, *options, "--", *command)
    assert rekindle.wait_lines("chance", 1) == ["ready"], rekindle.lines("chance")
    # An image that was begun before that line does not have it.
    for _ in range(2 if "--every" in options else 0):
        made = rekindle.sandbox("chance")["recovery"]["images"]
        rekindle.wait(lambda made=made: rekindle.sandbox("chance")["recovery"]["images"] != made, "an image")
    rekindle.wait(lambda: rekindle.sandbox("chance")["mending"]["on"], "mending to be on")
    # A copy may be made between a look and the kill, and then nothing was answered since: the next loss tells.
    for lost in range(5):
        rekindle.wait(lambda: rekindle.sandbox("chance")["mending"]["journal_bytes"] > 4000, "answers to be given")
        (worker,) = rekindle.sandbox("chance")["workers"]
        os.kill(worker, signal.SIGKILL)
        rekindle.wait(lambda lost=lost: has_been_lost(rekindle.sandbox("chance"), lost), "the loss to be noticed")
        if how == "loose" or rekindle.sandbox("chance")["mending"]["mended"] <= lost:
            return go
    raise AssertionError("no answer came between a copy and any of five losses")


def has_been_lost(row, mended):
    return row["problem"] or row["mending"]["mended"] > mended or (row.get("recovery") or {}).get("recoveries")


def test_what_comes_out_otherwise_is_told(rekindle):
    chance(rekindle, "strict")
    rekindle.wait(lambda: rekindle.sandbox("chance")["problem"], "the problem")
    assert "came out otherwise" in rekindle.sandbox("chance")["problem"]
    assert any("CUDA_ERROR" in line for line in rekindle.wait_end("chance"))


def test_what_may_come_out_otherwise_goes_on(rekindle):
    go = chance(rekindle, "loose")
    rekindle.wait(lambda: rekindle.sandbox("chance")["mending"]["mended"] or rekindle.sandbox("chance")["problem"], "it to be mended")
    assert rekindle.sandbox("chance")["problem"] is None
    go.touch()
    assert rekindle.wait_end("chance") == ["ready", "ok"]


def test_what_cannot_be_mended_goes_on_from_the_last_image(rekindle):
    go = chance(rekindle, "strict", "--every", "300ms", "--restart", "on-failure")
    rekindle.wait(lambda: rekindle.sandbox("chance")["recovery"]["recoveries"] == 1, "it to be brought back")
    assert "--- rekindle: restored from the image" in rekindle("logs", "chance")
    go.touch()
    assert rekindle.wait_end("chance") == ["ok"]


def test_what_cannot_be_mended_and_has_no_image_begins_anew(rekindle):
    go = chance(rekindle, "strict", "--restart", "on-failure")
    rekindle.wait(lambda: rekindle.sandbox("chance")["recovery"]["recoveries"] == 1, "it to be brought back")
    rekindle.wait(lambda: rekindle.lines("chance")[-1] == "ready", "its second beginning")
    go.touch()
    assert rekindle.wait_end("chance")[-1] == "ok"


def test_workers_that_are_lost_again_and_again_are_not_chance(rekindle):
    program = Program(rekindle, "waits")
    for times in range(6):
        program.on()
        program.kill()
        if times < 5:
            program.mended(times + 1)
    rekindle.wait(lambda: program.row()["problem"], "the problem")
    assert "it has lost 5 workers within 60 s, which is not chance" in program.row()["problem"]
    rekindle.wait_end(program.name)


def test_an_image_keeps_it(rekindle):
    program = Program(rekindle, "kernels", "uploads")
    program.goes_on()
    rekindle("checkpoint", program.name, "--to", "image", "--leave-running")
    program.on()
    program.lose()
    program.goes_on()
    rekindle("checkpoint", program.name, "--to", "image-2", "--stop")
    rekindle("restore", "image-2", "--gpu", rekindle.gpu, "-d")
    assert program.mending()["mended"] == 0
    program.on()
    program.lose()
    program.ends()


@pytest.mark.parametrize("level", ["gpu", "host"])
def test_it_goes_on_after_sleep(rekindle, level):
    program = Program(rekindle, "kernels", "pinned_memory")
    program.goes_on()
    program.pause()
    program.on()
    rekindle("sleep", program.name, "--level", level)
    (program.place / "pause").unlink()
    program.goes_on()
    program.on()
    program.lose()
    program.ends()


def test_another_daemon_holds_it(rekindle):
    program = Program(rekindle, "kernels", "streams")
    program.goes_on()
    program.on()
    rekindle("shutdown")
    # The next command starts another one.
    program.on()
    program.lose()
    program.ends()


def test_what_it_cannot_be_had_with_is_refused(rekindle):
    command = ["--gpu", rekindle.gpu, "--", sys.executable, "-c", ""]
    with pytest.raises(CommandError) as refused:
        rekindle("run", "-d", "--mend", "--mode", "driver", *command)
    assert "a program has no worker" in refused.value.message and "leave one of the two away" in refused.value.message
    assert rekindle.sandboxes() == []


def test_it_is_said_why_nothing_could_be_mended(rekindle):
    program = Program(rekindle, "captures")
    rekindle.wait(lambda: not program.is_on() and "captures a graph" in program.mending()["why"], "the reason")
    program.kill()
    rekindle.wait(lambda: program.row()["problem"], "the problem")
    assert "another one could not take its place: " in program.row()["problem"]
    rekindle.wait_end(program.name)
    plain = Program(rekindle, "kernels", name="plain", options=())
    assert "mending" not in plain.row()


LARGE = """
import os, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from gpu import ADD, Module, call, download, open_device
open_device()
module = Module(ADD)
all = []
def allocate(megabytes):
    n = megabytes << 18
    all.append((call("cuMemAlloc", n * 4), n))
    call("cuMemsetD32", all[-1][0], 0, n)
    call("cuCtxSynchronize")
for number, megabytes in enumerate(map(int, sys.argv[3:])):
    allocate(megabytes)
    print("ready", flush=True)
    while not os.path.exists(f"{sys.argv[2]}-{number}"):
        for address, n in all:
            module.add(1, 32, address, 1.0, 32)
        call("cuCtxSynchronize")
        time.sleep(0.001)
counts = [download(address, 1)[0] for address, n in all]
assert all and sorted(counts, reverse=True) == counts and counts[-1] > 0, counts
print("ok", flush=True)
"""


def test_the_copy_lies_on_the_host_where_the_gpu_has_no_room():
    with Rekindle(REKINDLE_EMULATED="memory=64M") as rekindle:
        go = rekindle.root / "go"
        rekindle("run", "-d", "--mend", "--name", "large", "--gpu", rekindle.gpu, "--", sys.executable, "-c", LARGE, FEATURES, go, 40)
        assert rekindle.wait_lines("large", 1) == ["ready"]
        mending = lambda: rekindle.sandbox("large")["mending"]
        rekindle.wait(lambda: mending()["on"] and mending()["base_on_host"], "a copy on the host")
        (worker,) = rekindle.sandbox("large")["workers"]
        os.kill(worker, signal.SIGKILL)
        rekindle.wait(lambda: mending()["mended"] == 1 or rekindle.sandbox("large")["problem"], "it to be mended")
        assert rekindle.sandbox("large")["problem"] is None
        (rekindle.root / "go-0").touch()
        assert rekindle.wait_end("large") == ["ready", "ok"]


def test_the_copy_gives_way_to_what_the_program_asks_for():
    with Rekindle(REKINDLE_EMULATED="memory=64M") as rekindle:
        go = rekindle.root / "go"
        rekindle("run", "-d", "--mend", "--name", "large", "--gpu", rekindle.gpu, "--", sys.executable, "-c", LARGE, FEATURES, go, 20, 36)
        assert rekindle.wait_lines("large", 1) == ["ready"]
        mending = lambda: rekindle.sandbox("large")["mending"]
        rekindle.wait(lambda: mending()["on"] and mending()["bases"] > 2, "copies on the GPU")
        (rekindle.root / "go-0").touch()
        assert rekindle.wait_lines("large", 2) == ["ready"] * 2
        rekindle.wait(lambda: mending()["on"] and mending()["base_bytes"] > 50 << 20, "a copy of all")
        (worker,) = rekindle.sandbox("large")["workers"]
        os.kill(worker, signal.SIGKILL)
        rekindle.wait(lambda: mending()["mended"] == 1 or rekindle.sandbox("large")["problem"], "it to be mended")
        assert rekindle.sandbox("large")["problem"] is None
        (rekindle.root / "go-1").touch()
        assert rekindle.wait_end("large") == ["ready", "ready", "ok"]


@pytest.mark.parametrize("point", ["quiesced", "saved", "draining"])
def test_a_worker_is_killed_in_a_checkpoint(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        program = Program(rekindle, "kernels", "pinned_memory")
        program.goes_on()
        program.on()
        checkpoint = rekindle.begin("checkpoint", program.name, "--to", "image", "--leave-running")
        rekindle.reached(point)
        program.kill()
        rekindle.let_go(point)
        with pytest.raises(CommandError):
            checkpoint.end()
        rekindle.wait(lambda: program.mending()["mended"] == 1, "it to be mended")
        program.ends()


def test_each_of_several_processes_goes_on(rekindle):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--mend", "--name", "many", "--gpu", rekindle.gpu, "--", sys.executable, FEATURES / "processes.py", go)
    assert rekindle.wait_lines("many", 1)[:1] == ["ready"], rekindle.lines("many")
    rekindle.wait(lambda: rekindle.sandbox("many")["mending"]["on"], "mending to be on")
    workers = rekindle.sandbox("many")["workers"]
    assert len(workers) > 1
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    times = len(workers)
    rekindle.wait(lambda: rekindle.sandbox("many")["mending"]["mended"] == times or rekindle.sandbox("many")["problem"], "all to be mended")
    assert rekindle.sandbox("many")["problem"] is None
    go.touch()
    assert rekindle.wait_end("many")[-1] == "ok"
