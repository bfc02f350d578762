"""A fault ends a context that programs share: those at rest go on in another one and never notice, those at work are told."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from interleavings.machine import daemon, is_alive
from rekindle import Rekindle, processes, waits_for_a_daemon
from test_bad_input import kill_daemon
from test_features import ALONE, FEATURES
from test_sharing import Programs, contexts

TOLD = "the GPU context that it shares has failed while it had work there; its GPU calls return an error from now on"
# It faults when it is told to, and says what it was told of that. Its kernel is loaded by then: to load it would wait for all work of the
# context.
FAULTY = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from gpu import Module, call, driver, open_device
open_device()
module = Module('extern "C" __global__ void write(int *word) { *word = 1; }')
module.write(1, 1, call("cuMemAlloc", 4))
call("cuCtxSynchronize")
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.005)
module.write(1, 1, 1 << 40)
print(driver.cuCtxSynchronize()[0].name, flush=True)
time.sleep(1000)
"""
# Its stream waits for a word that nobody writes.
BUSY = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from gpu import call, driver, open_device
open_device()
word = call("cuMemAlloc", 4)
call("cuMemsetD32", word, 0, 1)
call("cuStreamWaitValue32", 0, word, 1, 0)
print("ready", flush=True)
print(driver.cuStreamSynchronize(0)[0].name, flush=True)
sys.exit(1)
"""
# The same, but the word is written when it is told to.
BUSY_FOR_A_WHILE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from gpu import call, driver, open_device
open_device()
word, (busy, other) = call("cuMemAlloc", 4), [call("cuStreamCreate", 1) for _ in range(2)]
call("cuMemsetD32", word, 0, 1)
call("cuCtxSynchronize")
call("cuStreamWaitValue32", busy, word, 1, 0)
print("ready", flush=True)
while not os.path.exists(sys.argv[2]) and driver.cuStreamQuery(busy)[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
    time.sleep(0.05)
driver.cuMemsetD32Async(word, 1, 1, other)
print(driver.cuStreamSynchronize(busy)[0].name, flush=True)
"""
# Of a worker that was started just now, seconds.
START_LIMIT = 20
# Each point of the way at which the program can still go on with another process.
BEFORE = ["migrate-begun", "migrate-saved", "migrate-restored", "migrate-parted", "migrate-handed-over"]


def share(rekindle, name, *command, options=()):
    rekindle("run", "-d", "--share", "us", "--name", name, "--gpu", rekindle.gpu, *options, "--", *command)


class Faulty:
    """A program that shares the context and is ready to end it."""

    def __init__(self, rekindle, name="faulty"):
        self.rekindle, self.name, self.word = rekindle, name, rekindle.root / f"{name}.go"
        share(rekindle, name, sys.executable, "-c", FAULTY, FEATURES, self.word)
        assert rekindle.wait_lines(name, 1) == ["ready"]

    def __call__(self):
        self.word.touch()

    def end(self):
        self.rekindle("kill", self.name)
        self.rekindle.wait_end(self.name)


def moved(rekindle, name, before):
    """Waits until it goes on elsewhere: the process that it does so with."""
    rows = []

    def is_there():
        rows.append(rekindle.sandbox(name))
        return rows[-1]["state"] == "running" and len(rows[-1]["workers"]) == 1 and rows[-1]["workers"] != [before]

    rekindle.wait(is_there, f"{name} to go on elsewhere")
    assert rows[-1]["problem"] is None
    (pid,) = rows[-1]["workers"]
    return pid


# What arrays hold only their context knows.
ARRAYS = ("arrays", "surfaces", "textures")


# What kernels print comes to the log of the process whose contexts are shared; green contexts are refused there.
@pytest.mark.parametrize("name", [name for name in ALONE if name not in ("printing", "green_contexts", *ARRAYS)])
def test_features_outlive_a_fault(rekindle, name):
    share(rekindle, name, sys.executable, FEATURES / f"{name}.py", rekindle.root / "go")
    assert rekindle.wait_lines(name, 1)[:1] == ["ready"], rekindle.lines(name)
    (before,) = rekindle.sandbox(name)["workers"]
    Faulty(rekindle)()
    moved(rekindle, name, before)
    (rekindle.root / "go").touch()
    assert rekindle.wait_end(name) == ["ready", "ok"]


@pytest.mark.parametrize("name", ARRAYS)
def test_who_has_arrays_is_told(rekindle, name):
    share(rekindle, name, sys.executable, FEATURES / f"{name}.py", rekindle.root / "go")
    assert rekindle.wait_lines(name, 1)[:1] == ["ready"], rekindle.lines(name)
    Faulty(rekindle)()
    assert rekindle.wait_lines("faulty", 2)[1] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    (rekindle.root / "go").touch()
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in rekindle.wait_end(name)[-1]


def test_who_is_at_rest_goes_on_and_who_is_at_work_is_told(rekindle):
    programs = Programs(rekindle)
    programs.start("a", "b", "c")
    before = programs.worker("a")
    fault = Faulty(rekindle)
    share(rekindle, "busy", sys.executable, "-c", BUSY, FEATURES)
    assert rekindle.wait_lines("busy", 1) == ["ready"]
    events = rekindle.begin("events", "--json")
    assert json.loads(events.process.stdout.readline())["event"] == "listening"
    assert {programs.worker(name) for name in ("a", "b", "c", "busy", "faulty")} == {before}
    fault()
    for name in ("busy", "faulty"):
        assert rekindle.wait_lines(name, 2) == ["ready", "CUDA_ERROR_ILLEGAL_ADDRESS"]
    rekindle.wait_end("busy")
    after = {moved(rekindle, name, before) for name in "abc"}
    # They are together again, without those that were told.
    assert len(after) == 1 and programs.worker("faulty") == before
    told = lambda: [rekindle.sandbox(name)["problem"] for name in ("busy", "faulty")]
    rekindle.wait(lambda: told() == [TOLD, TOLD], "both to be told")
    programs.go_on("a", "b", "c")
    fault.end()
    # Of the context that has failed nothing is left.
    rekindle.wait(lambda: [one["pid"] for one in contexts(rekindle)] == list(after), "one context")
    programs.go_on("a", "b", "c")
    events.process.kill()
    happened = [json.loads(line) for line in events.process.communicate()[0].splitlines()]
    by_event = lambda event: sorted(one["sandbox"] for one in happened if one["event"] == event)
    assert by_event("outlived") == ["a", "b", "c"] and by_event("problem") == ["busy", "faulty"]
    log = (rekindle.state / "daemon.log").read_text()
    assert log.count("was at rest when the GPU context that it shared failed, and goes on in another one") == 3


def test_of_24_programs_in_two_contexts_a_fault_concerns_those_at_work_in_one(rekindle):
    programs, go = Programs(rekindle), rekindle.root / "busy.go"
    fault = Faulty(rekindle)
    # With the one that faults sixteen, which is what a context has, and eight in the next one.
    counts = {"rests": 9, "works": 6, "far-rests": 5, "far-works": 3}
    names = {kind: [f"{kind}-{number}" for number in range(count)] for kind, count in counts.items()}
    for kind, some in names.items():
        if kind.endswith("rests"):
            programs.start(*some)
            continue
        for name in some:
            share(rekindle, name, sys.executable, "-c", BUSY_FOR_A_WHILE, FEATURES, go)
        assert [rekindle.wait_lines(name, 1) for name in some] == [["ready"]] * len(some)
    workers = {row["name"]: row["workers"] for row in rekindle.sandboxes()}
    (before,), (far,) = workers["faulty"], workers["far-rests-0"]
    near = ["faulty", *names["rests"], *names["works"]]
    assert workers == {name: [before if name in near else far] for name in workers} and len(workers) == 24
    events = rekindle.begin("events", "--json")
    assert json.loads(events.process.stdout.readline())["event"] == "listening"
    fault()
    for name in (*names["works"], "faulty"):
        assert rekindle.wait_lines(name, 2) == ["ready", "CUDA_ERROR_ILLEGAL_ADDRESS"], name
    for name in names["rests"]:
        moved(rekindle, name, before)
    programs.go_on(*names["rests"], *names["far-rests"])
    for row in rekindle.sandboxes():
        if row["name"] in names["far-rests"] + names["far-works"]:
            assert (row["workers"], row["problem"], row["state"]) == ([far], None, "running")
    assert [rekindle.lines(name) for name in names["far-works"]] == [["ready"]] * len(names["far-works"])
    go.touch()
    for name in names["far-works"]:
        assert rekindle.wait_end(name) == ["ready", "CUDA_SUCCESS"]
    fault.end()
    rekindle.wait(lambda: before not in {one["pid"] for one in contexts(rekindle)}, "the end of the context that has failed")
    programs.go_on(*names["rests"], *names["far-rests"])
    events.process.kill()
    happened = [json.loads(line) for line in events.process.communicate()[0].splitlines()]
    by_event = lambda event: sorted(one["sandbox"] for one in happened if one["event"] == event)
    assert by_event("outlived") == names["rests"] and by_event("problem") == ["faulty", *names["works"]]


def test_who_was_told_and_is_to_be_brought_back_begins_anew_in_another_context(rekindle):
    fault = Faulty(rekindle)
    share(rekindle, "busy", sys.executable, "-c", BUSY, FEATURES, options=("--restart", "on-failure"))
    assert rekindle.wait_lines("busy", 1) == ["ready"]
    (before,) = rekindle.sandbox("busy")["workers"]
    fault()
    told = ["ready", "CUDA_ERROR_ILLEGAL_ADDRESS", "ready"]
    rekindle.wait(lambda: [line for line in rekindle.lines("busy") if line in told] == told, "busy to be brought back")
    (after,) = rekindle.sandbox("busy")["workers"]
    assert after != before
    # What its stream waits for never comes, and the process would wait for that.
    rekindle("kill", "busy")
    os.kill(after, signal.SIGKILL)


def test_it_is_imaged_and_restored_and_outlives_further_faults(rekindle):
    programs = Programs(rekindle)
    programs.start("a", "b")
    for number in range(3):
        before = programs.worker("a")
        Faulty(rekindle, f"faulty-{number}")()
        for name in "ab":
            moved(rekindle, name, before)
        programs.go_on("a", "b")
    rekindle("checkpoint", "a", "--to", "going", "--leave-running")
    rekindle("checkpoint", "b", "--to", "image", "--stop")
    programs.restore("image", "b", "--share", "us")
    programs.restore("going", "alone")
    programs.go_on("a", "b", "alone")
    # One that was restored outlives a fault too.
    before = programs.worker("b")
    Faulty(rekindle)()
    moved(rekindle, "b", before)
    programs.go_on("a", "b", "alone")


def test_calls_wait_meanwhile_and_threads_may_come():
    with held("migrate-restored") as (rekindle, programs, fault, before):
        threads = "import threading\n" + THREADS
        share(rekindle, "threads", sys.executable, "-c", threads, FEATURES, rekindle.root / "go")
        assert rekindle.wait_lines("threads", 1) == ["ready"]
        assert programs.worker("threads") == before
        fault()
        rekindle.reached("migrate-restored")
        programs.go_to(programs.to + 1)
        (rekindle.root / "go").touch()
        # Both are in a call by then, one in that of a thread which the worker has not heard of.
        time.sleep(0.5)
        assert rekindle.lines("threads") == ["ready"] and len(rekindle.lines("a")) == programs.to
        rekindle.let_go("migrate-restored")
        assert rekindle.wait_lines("threads", 2) == ["ready", "sum 4096"]
        programs.to -= 1
        programs.go_on("a")


THREADS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from gpu import call, download, open_device, upload
context = open_device()
buffer = upload(np.ones(4096, np.uint32))

def work():
    call("cuCtxSetCurrent", context)
    print("sum", download(buffer, 4096, np.uint32).sum(), flush=True)

print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.005)
thread = threading.Thread(target=work)
thread.start()
thread.join()
time.sleep(1000)
"""


@contextmanager
def held(point):
    """A program at rest and one that is ready to fault, and what is to happen on the way."""
    with Rekindle(REKINDLE_FAULT=point if ":" in point else f"{point}:hang") as rekindle:
        programs = Programs(rekindle)
        programs.start("a")
        yield rekindle, programs, Faulty(rekindle), programs.worker("a")


@pytest.mark.parametrize("point", ["migrate-begun", "migrate-restored"])
def test_where_the_other_process_dies_it_goes_on_in_a_third(point):
    with held(point) as (rekindle, programs, fault, before):
        fault()
        rekindle.reached(point)
        others = lambda: {one["pid"] for one in contexts(rekindle)} - {before}
        if point == "migrate-restored":
            (other,) = others()
            os.kill(other, signal.SIGKILL)
        rekindle.let_go(point)
        after = moved(rekindle, "a", before)
        assert point == "migrate-begun" or after != other
        programs.go_on("a")


@pytest.mark.parametrize("point", ["migrate-parted", "migrate-handed-over"])
def test_where_the_other_process_dies_after_that_it_is_told(point):
    with held(point) as (rekindle, programs, fault, before):
        fault()
        rekindle.reached(point)
        (other,) = {one["pid"] for one in contexts(rekindle)} - {before}
        os.kill(other, signal.SIGKILL)
        rekindle.let_go(point)
        is_told(rekindle, programs)


def is_told(rekindle, programs):
    """It was not lost: it meets the error at its next call."""
    rekindle.wait(lambda: "its GPU calls return an error from now on" in (rekindle.sandbox("a")["problem"] or ""), "what is said of it")
    programs.go_to(programs.to + 1)
    rekindle.wait_end("a")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in rekindle("logs", "a")


@pytest.mark.parametrize("point", BEFORE)
def test_a_step_that_fails_has_it_told(point):
    with held(f"{point}:fail") as (rekindle, programs, fault, _):
        fault()
        is_told(rekindle, programs)


@pytest.mark.parametrize("point", [*BEFORE, "migrate-resumed"])
def test_a_daemon_that_dies_meanwhile_leaves_one_program(point):
    with held(f"{point}:kill") as (rekindle, programs, fault, before):
        del rekindle.environment["REKINDLE_FAULT"]
        before_that = daemon(rekindle)
        fault()
        rekindle.wait(lambda: not is_alive(before_that), "the end of the daemon")
        rekindle.wait(lambda: rekindle.sandbox("a")["state"] == "running", "the next daemon")
        if point == "migrate-resumed":
            moved(rekindle, "a", before)
            programs.go_on("a")
        else:
            is_told(rekindle, programs)


def test_without_a_daemon_they_are_told(rekindle):
    programs = Programs(rekindle)
    programs.start("a")
    fault = Faulty(rekindle)
    dead = daemon(rekindle)
    os.kill(dead, signal.SIGKILL)
    # It would still hear of the fault.
    rekindle.wait(lambda: not is_alive(dead), "the daemon's end")
    logs = lambda: "".join(log.read_text() for log in rekindle.state.rglob("*.log"))
    fault()
    rekindle.wait(lambda: "\nCUDA_ERROR_ILLEGAL_ADDRESS" in logs(), "the fault")
    programs.go_to(programs.to + 1)
    # Only then may there be a daemon again: one of them it would be told by, if it had waited.
    rekindle.wait(lambda: "RuntimeError: <CUresult.CUDA_ERROR_ILLEGAL_ADDRESS" in logs(), "a to be told")
    began = time.monotonic()
    rekindle("ps")
    assert time.monotonic() - began < START_LIMIT, "it waited for workers that are gone to listen"
    rekindle.wait_end("a")


@pytest.mark.parametrize("point", ["migrate-begun", "migrate-parted"])
def test_a_program_that_ends_meanwhile_leaves_nothing(point):
    with held(point) as (rekindle, programs, fault, before):
        fault()
        rekindle.reached(point)
        os.kill(rekindle.sandbox("a")["pid"], signal.SIGKILL)
        rekindle.let_go(point)
        rekindle.wait_end("a")
        fault.end()
        rekindle.wait(lambda: before not in {one["pid"] for one in contexts(rekindle)}, "the end of the context")
        assert not list(rekindle.run_root.glob("moving/**/images/*"))


def test_an_image_that_is_asked_for_meanwhile_waits_or_is_refused():
    with held("migrate-saved") as (rekindle, programs, fault, before):
        fault()
        rekindle.reached("migrate-saved")
        assert rekindle.sandbox("a")["state"] == "migrating"
        said = rekindle.begin("checkpoint", "a", "--to", "image", "--leave-running")
        assert "is migrating" in said.process.communicate()[1]
        rekindle.let_go("migrate-saved")
        moved(rekindle, "a", before)
        rekindle("checkpoint", "a", "--to", "image", "--leave-running")
        programs.go_on("a")


def test_what_is_asked_for_when_it_has_moved_waits_until_that_is_tidied_up():
    with held("migrate-noted") as (rekindle, programs, fault, before):
        fault()
        rekindle.reached("migrate-noted")
        moved(rekindle, "a", before)
        said = rekindle.begin("checkpoint", "a", "--to", "image", "--leave-running")
        with pytest.raises(subprocess.TimeoutExpired):
            said.process.wait(0.5)
        rekindle.let_go("migrate-noted")
        said.end()
        programs.go_on("a")


def test_a_client_that_a_daemon_admitted_and_did_not_note_is_ended(rekindle):
    programs = Programs(rekindle)
    programs.start("a")
    fault = Faulty(rekindle)
    kill_daemon(rekindle)
    rekindle.environment["REKINDLE_FAULT"] = "worker-taken:kill"
    rekindle("ps")
    dies = daemon(rekindle)
    fault()
    rekindle.wait(lambda: not is_alive(dies), "the end of the daemon")
    del rekindle.environment["REKINDLE_FAULT"]
    rekindle.wait(lambda: rekindle.sandbox("a")["state"] == "running", "the next daemon")
    is_told(rekindle, programs)
    fault.end()
    words = lambda: processes(rekindle.root, rekindle.run_root).items()
    rekindle.wait(lambda: all(waits_for_a_daemon(*one) for one in words() if " worker " in one[1]), "the end of all clients", 20)
