"""A running program moves to another GPU, and never notices; whatever dies meanwhile, it goes on where it was, or there."""

import http.client
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rekindle import PATIENCE, CommandError, Rekindle, processes
from test_bad_input import kill_daemon
from test_features import ALONE, FEATURES

CHECKS = Path(__file__).parent / "migration/checks.py"
SERVER = Path(__file__).parent / "services/server.py"
FIRST, SECOND = "emulated", "emulated:1"
# Bytes of the program's that nobody writes to.
STILL = 10_000_000
# How memory gets there: copied by the GPUs, or through the host's memory, most of it while the program runs.
WAYS = {"direct": (), "host": ("--rounds", 2)}
# Until the program is told to go on there, it goes on where it was.
AHEAD = ["migrate-draining", "migrate-round"]
BEFORE = ["migrate-begun", "migrate-quiesced", "migrate-saved", "migrate-restored", "migrate-parted", "migrate-handed-over"]
AFTER = ["migrate-resumed", "migrate-noted"]
# The ways are two in how memory is saved and restored; all else is the same.
STEPS = [(point, "host") for point in [*AHEAD, "migrate-saved", "migrate-restored"]] + [(point, "direct") for point in BEFORE]


def start(rekindle):
    """A program that computes and checks itself all the time, until `go` is there."""
    rekindle.run("checks", sys.executable, CHECKS, rekindle.root / "go")
    computes(rekindle)


def computes(rekindle, name="checks"):
    """Until it has come farther, or has ended."""
    so_far = len(rekindle.lines(name))
    rekindle.wait_lines(name, so_far + 3)
    assert rekindle.sandbox(name)["pid"], rekindle.lines(name)[-3:]


def end(rekindle):
    (rekindle.root / "go").touch()
    lines = rekindle.wait_end("checks")
    assert lines[-1] == "ok", lines[-3:]
    assert nothing_is_left(rekindle)


def nothing_is_left(rekindle):
    return not list(rekindle.run_root.glob("moving/**/images/*")) and not list(rekindle.run_root.glob("moving/**/chunks/*/*"))


def fails(rekindle, *arguments):
    with pytest.raises(CommandError) as error:
        rekindle(*arguments)
    return error.value.message


def worker_of(rekindle, name):
    """The pid of the only worker of this sandbox that there is in the end."""
    rekindle.wait(lambda: len(rekindle.sandbox(name)["workers"]) == 1, "one worker")
    return rekindle.sandbox(name)["workers"][0]


def set_fault(rekindle, fault):
    """For the daemon and the workers that come next."""
    rekindle("shutdown")
    rekindle.environment["REKINDLE_FAULT"] = fault


@pytest.mark.parametrize("name", ALONE)
def test_features_survive(rekindle, name):
    rekindle.run(name, sys.executable, FEATURES / f"{name}.py", rekindle.root / "go")
    assert rekindle.wait_lines(name, 1)[:1] == ["ready"], rekindle.lines(name)
    before = rekindle.sandbox(name)
    # There by one way, and back by the other.
    for (way, options), here, there in zip(WAYS.items(), (FIRST, SECOND), (SECOND, FIRST), strict=True):
        report = rekindle.json("migrate", name, "--gpu", there, *options)
        after = rekindle.sandbox(name)
        assert (report["way"], report["from"], report["gpu"], after["gpu"]) == (way, here, there, there)
        assert (after["pid"], after["state"]) == (before["pid"], "running")
    (rekindle.root / "go").touch()
    assert rekindle.wait_end(name) == ["ready", "ok"]
    assert nothing_is_left(rekindle)


def test_there_and_back_ten_times(rekindle):
    start(rekindle)
    for trip in range(10):
        for there in (SECOND, FIRST):
            report = rekindle.json("migrate", "checks", "--gpu", there, *WAYS["host" if trip % 2 else "direct"])
            assert report["stopped_us"] <= report["total_us"] and report["rounds"][-1]["stopped_us"] == report["stopped_us"]
            assert rekindle.sandbox("checks")["gpu"] == there
            computes(rekindle)
    worker_of(rekindle, "checks")
    traces = rekindle.json("trace", "checks", "--svg", rekindle.root / "picture.svg")["traces"]
    assert {trace["operation"] for trace in traces} == {"migrate"} and not any(trace["problem"] for trace in traces)
    end(rekindle)


def test_what_stays_as_it_is_is_copied_while_the_program_runs(rekindle):
    start(rekindle)
    ahead, last = rekindle.json("migrate", "checks", "--gpu", SECOND, "--rounds", 4)["rounds"]
    assert ahead["bytes"] > STILL > last["bytes"] and ahead["stopped_us"] < ahead["duration_us"]
    (all_at_once,) = rekindle.json("migrate", "checks", "--gpu", FIRST, "--rounds", 0)["rounds"]
    assert all_at_once["bytes"] > STILL
    computes(rekindle)
    phases = rekindle.json("trace", "checks", "--svg", rekindle.root / "picture.svg")["traces"][0]["phases"]
    loads = [phase["from"].get("GPU cache", 0) for phase in phases if phase["name"] == "GPU memory"]
    assert max(loads) > STILL
    end(rekindle)


def test_no_request_fails_over_ten_moves(rekindle):
    options = ("--network", "private", "-p", "0:8000")
    rekindle("run", "-d", "--name", "web", "--gpu", FIRST, *options, "--", sys.executable, SERVER, "web", "8000")
    rekindle.wait_lines("web", 1)
    (port,) = (row["port"] for row in rekindle.sandbox("web")["ports"])
    over, counted = threading.Event(), []

    def ask():
        while not over.wait(0.005):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("GET", "/")
            answer = connection.getresponse()
            assert answer.status == 200
            counted.append(json.loads(answer.read()))
            connection.close()

    with ThreadPoolExecutor(4) as clients:
        asking = [clients.submit(ask) for _ in range(4)]
        try:
            for trip in range(5):
                for there in (SECOND, FIRST):
                    so_far = len(counted)
                    rekindle("migrate", "web", "--gpu", there, *WAYS["host" if trip % 2 else "direct"])
                    rekindle.wait(lambda so_far=so_far: len(counted) > so_far + 8 or any(one.done() for one in asking), "answers")
        finally:
            over.set()
        for one in asking:
            one.result(PATIENCE)
    assert [row["port"] for row in rekindle.sandbox("web")["ports"]] == [port]


@pytest.mark.parametrize(("point", "way"), STEPS)
def test_a_step_that_fails_leaves_it_where_it_was(point, way):
    with Rekindle() as rekindle:
        start(rekindle)
        set_fault(rekindle, point)
        assert "injected" in fails(rekindle, "migrate", "checks", "--gpu", SECOND, *WAYS[way])
        row = rekindle.sandbox("checks")
        assert (row["gpu"], row["state"], row["problem"]) == (FIRST, "running", None)
        computes(rekindle)
        rekindle("shutdown")
        del rekindle.environment["REKINDLE_FAULT"]
        rekindle("migrate", "checks", "--gpu", SECOND, *WAYS[way])
        computes(rekindle)
        end(rekindle)


@pytest.mark.parametrize(("point", "way"), [*STEPS, *((point, "direct") for point in AFTER)])
def test_a_daemon_that_is_killed_leaves_one_program(point, way):
    with Rekindle() as rekindle:
        start(rekindle)
        set_fault(rekindle, f"{point}:kill")
        rekindle("migrate", "checks", "--gpu", SECOND, *WAYS[way], check=False)
        del rekindle.environment["REKINDLE_FAULT"]
        # Nobody needs a daemon for that.
        there = point in AFTER
        computes(rekindle)
        row = rekindle.sandbox("checks")
        assert (row["gpu"], row["state"]) == (SECOND if there else FIRST, "running")
        assert there or "goes on where it was" in row["problem"]
        worker_of(rekindle, "checks")
        rekindle("migrate", "checks", "--gpu", FIRST if there else SECOND, *WAYS[way])
        computes(rekindle)
        end(rekindle)


@pytest.mark.parametrize("point", ["migrate-begun", "migrate-restored", "migrate-parted", "migrate-handed-over"])
def test_a_killed_worker_on_the_other_gpu_leaves_it_where_it_was(point):
    with Rekindle() as rekindle:
        start(rekindle)
        here = worker_of(rekindle, "checks")
        set_fault(rekindle, f"{point}:hang")
        moving = rekindle.begin("migrate", "checks", "--gpu", SECOND)
        rekindle.reached(point)
        (there,) = set(rekindle.sandbox("checks")["workers"]) - {here}
        os.kill(there, signal.SIGKILL)
        rekindle.let_go(point)
        with pytest.raises(CommandError, match="worker"):
            moving.end()
        computes(rekindle)
        assert rekindle.sandbox("checks")["gpu"] == FIRST and worker_of(rekindle, "checks") == here
        end(rekindle)


@pytest.mark.parametrize(("fault", "said"), [("taking-over:kill", "worker"), ("taking-over", "injected")])
def test_a_worker_that_does_not_come_to_take_the_program_leaves_it_where_it_was(fault, said):
    with Rekindle() as rekindle:
        start(rekindle)
        set_fault(rekindle, fault)
        assert said in fails(rekindle, "migrate", "checks", "--gpu", SECOND)
        computes(rekindle)
        assert rekindle.sandbox("checks")["gpu"] == FIRST
        end(rekindle)


@pytest.mark.parametrize("point", ["migrate-parted", "migrate-handed-over"])
def test_a_worker_that_dies_once_it_has_parted_is_not_missed(point):
    with Rekindle() as rekindle:
        start(rekindle)
        here = worker_of(rekindle, "checks")
        set_fault(rekindle, f"{point}:hang")
        moving = rekindle.begin("migrate", "checks", "--gpu", SECOND)
        rekindle.reached(point)
        os.kill(here, signal.SIGKILL)
        rekindle.let_go(point)
        moving.end()
        computes(rekindle)
        row = rekindle.sandbox("checks")
        assert (row["gpu"], row["problem"]) == (SECOND, None)
        end(rekindle)


@pytest.mark.parametrize("point", ["migrate-quiesced", "migrate-restored", "migrate-handed-over"])
def test_a_program_that_is_killed_leaves_nothing(point):
    with Rekindle() as rekindle:
        start(rekindle)
        set_fault(rekindle, f"{point}:hang")
        moving = rekindle.begin("migrate", "checks", "--gpu", SECOND)
        rekindle.reached(point)
        rekindle("kill", "checks", check=False)
        rekindle.let_go(point)
        with pytest.raises(CommandError, match="ended"):
            moving.end()
        rekindle.wait_end("checks")
        rekindle.wait(lambda: nothing_is_left(rekindle), "what went through memory to be gone")


def test_the_next_daemon_finds_it_there(rekindle):
    start(rekindle)
    rekindle("migrate", "checks", "--gpu", SECOND)
    kill_daemon(rekindle)
    assert rekindle.sandbox("checks")["gpu"] == SECOND
    rekindle("checkpoint", "checks", "--to", "image", "--leave-running")
    assert rekindle.json("inspect", "image")["program"]
    rekindle("sleep", "checks")
    rekindle.wake("checks")
    rekindle("migrate", "checks", "--gpu", FIRST)
    computes(rekindle)
    end(rekindle)


@pytest.mark.parametrize("caches", [{}, {"REKINDLE_GPU_CACHE": "64M", "REKINDLE_HOST_CACHE": "64M"}], ids=["none", "caches"])
def test_restored_programs_move(caches):
    with Rekindle(**caches) as rekindle:
        start(rekindle)
        rekindle("checkpoint", "checks", "--to", "image", "--stop")
        for name, way in (("one", "direct"), ("two", "host")):
            rekindle.restore("image", name)
            computes(rekindle, name)
            rekindle("migrate", name, "--gpu", SECOND, *WAYS[way])
        for name in ("one", "two"):
            computes(rekindle, name)
        (rekindle.root / "go").touch()
        assert [rekindle.wait_end(name)[-1] for name in ("one", "two")] == ["ok", "ok"]


def test_after_a_failure_it_goes_on_where_it_had_moved_to(rekindle):
    rekindle("run", "-d", "--name", "checks", "--gpu", FIRST, "--restart", "on-failure", "--", sys.executable, CHECKS, rekindle.root / "go")
    computes(rekindle)
    rekindle("migrate", "checks", "--gpu", SECOND)
    before = rekindle.sandbox("checks")["pid"]
    os.kill(before, signal.SIGKILL)
    rekindle.wait(lambda: rekindle.sandbox("checks")["pid"] not in (0, before), "it to be brought back")
    assert rekindle.sandbox("checks")["gpu"] == SECOND
    computes(rekindle)
    end(rekindle)


def test_it_is_told(rekindle):
    start(rekindle)
    events = rekindle.begin("events", "--json")
    assert json.loads(events.process.stdout.readline())["event"] == "listening"
    rekindle("migrate", "checks", "--gpu", SECOND)
    told = []
    while not told or told[-1].get("state") != "running":
        told.append(json.loads(events.process.stdout.readline()))
    events.process.kill()
    events.process.communicate()
    assert [one.get("state", one["event"]) for one in told] == ["migrating", "migrated", "running"]
    assert (told[1]["sandbox"], told[1]["gpu"]) == ("checks", SECOND)
    end(rekindle)


def test_one_thing_at_a_time():
    with Rekindle() as rekindle:
        start(rekindle)
        set_fault(rekindle, "migrate-saved:hang")
        moving = rekindle.begin("migrate", "checks", "--gpu", SECOND)
        rekindle.reached("migrate-saved")
        assert rekindle.sandbox("checks")["state"] == "migrating"
        assert "is migrating" in fails(rekindle, "migrate", "checks", "--gpu", "emulated:2")
        assert "is migrating" in fails(rekindle, "checkpoint", "checks", "--to", "image", "--stop")
        assert "is migrating" in fails(rekindle, "sleep", "checks")
        rekindle.let_go("migrate-saved")
        moving.end()
        computes(rekindle)
        end(rekindle)


def test_one_that_is_cancelled_leaves_it_where_it_was():
    with Rekindle() as rekindle:
        start(rekindle)
        set_fault(rekindle, "migrate-saved:hang")
        moving = rekindle.begin("migrate", "checks", "--gpu", SECOND)
        rekindle.reached("migrate-saved")
        moving.process.send_signal(signal.SIGINT)
        assert "cancelling" in moving.process.stderr.readline()
        rekindle.let_go("migrate-saved")
        with pytest.raises(CommandError, match="the migration was cancelled") as error:
            moving.end()
        assert error.value.code == 130
        computes(rekindle)
        assert rekindle.sandbox("checks")["gpu"] == FIRST
        end(rekindle)


def test_what_cannot_move_is_refused(rekindle):
    def refusal(name, gpu=SECOND):
        return fails(rekindle, "migrate", name, "--gpu", gpu)

    rekindle.run("plain", "sleep", "infinity")
    assert "nothing to move" in refusal("plain")
    assert "no sandbox" in refusal("nobody")
    start(rekindle)
    assert "already" in refusal("checks", FIRST)
    assert "already" in refusal("checks", "emulated:0")
    assert "no GPU is named" in refusal("checks", "moon")
    assert "from 0 to 7" in refusal("checks", "emulated:9")
    assert "same model" in refusal("checks", "emulated:1,sms=8")
    assert "MB are free" in refusal("checks", "emulated:1,memory=64M")
    assert "is 2 GPUs" in refusal("checks", "emulated:1,devices=2")
    assert not Path("/dev/nvidiactl").exists() and "NVIDIA" in refusal("checks", "nvidia:1")
    computes(rekindle)
    rekindle("run", "-d", "--name", "several", "--gpu", "emulated:devices=2", "--", sys.executable, CHECKS, rekindle.root / "go")
    rekindle.wait_lines("several", 2)
    assert "sees 2 GPUs" in refusal("several")
    rekindle("run", "-d", "--name", "shares", "--gpu", FIRST, "--share", "us", "--", sys.executable, CHECKS, rekindle.root / "go")
    rekindle.wait_lines("shares", 2)
    assert "shares its context" in refusal("shares")
    rekindle("kill", "shares", "several")
    rekindle.run("buffers", sys.executable, FEATURES / "buffers.py", rekindle.root / "go")
    rekindle.wait_lines("buffers", 1)
    rekindle("sleep", "buffers")
    assert "sleeps" in refusal("buffers")
    end(rekindle)


def test_a_worker_that_a_daemon_took_and_did_not_note_is_ended():
    with Rekindle() as rekindle:
        start(rekindle)
        set_fault(rekindle, "worker-taken:kill")
        rekindle("migrate", "checks", "--gpu", SECOND, check=False)
        del rekindle.environment["REKINDLE_FAULT"]
        computes(rekindle)
        # By itself it would wait for a minute.
        # A worker that was taken listens elsewhere than it was started to.
        started_at = lambda command: Path(command.split(" --listen ")[1].split()[0])
        commands = lambda: [command for command in processes(rekindle.run_root).values() if " --listen " in command]
        rekindle.wait(lambda: sum(not started_at(command).exists() for command in commands()) == 1, "the end of the other worker", 20)
        end(rekindle)
