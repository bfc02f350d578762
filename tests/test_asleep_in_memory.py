"""Contents that sleep in memory: the worker that waits for them has the GPU know them, which then copies them from there."""

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from rekindle import ROOT, CommandError, Rekindle
from test_bad_input import kill_daemon

WEIGHTS = [sys.executable, ROOT / "crates/cli/tests/programs/weights.py"]
# More than is registered at once.
MEGABYTES = 70
# Less for a GPU in software that hashes them.
FEWER = 12


def start(rekindle, name, seed=1, megabytes=MEGABYTES):
    """A program with weights on the GPU, which it compares with what they should be whenever it is asked."""
    rekindle.run(name, *WEIGHTS, seed, megabytes, rekindle.root / name)
    assert asked(rekindle, name)


def asked(rekindle, name):
    """Whether the weights are still the same."""
    # The client may say beside it that the program is not woken yet.
    answers = lambda: [line for line in rekindle.lines(name) if line.isdigit()]
    seen, file = len(answers()), rekindle.root / name
    file.touch()
    # What it prints may come to the log a while later.
    has_answered = lambda: not file.exists() and len(answers()) > seen
    rekindle.wait(lambda: has_answered() or not rekindle.sandbox(name)["pid"], "the answer")
    return answers()[seen:] == [str(seen)]


def sleep(rekindle, name, megabytes=MEGABYTES):
    """Until a worker that waits has all of what sleeps registered."""
    rekindle("sleep", name, "--level", "host")
    rekindle.wait(lambda: registered(rekindle, megabytes), "a worker that waits")


def registered(rekindle, megabytes=MEGABYTES):
    # First, for a daemon that begins removes what the logs of another's workers say.
    rekindle("ps")
    said = f"the GPU knows {megabytes << 20} bytes"
    return any(said in log for log in logs_of_those_that_wait(rekindle))


def logs_of_those_that_wait(rekindle):
    for path in (rekindle.state / "logs").glob("pool-*.log"):
        # One that is taken keeps its log elsewhere.
        with contextlib.suppress(FileNotFoundError):
            yield path.read_text()


def source(rekindle, name):
    """Where the contents came from when it woke last, and how many."""
    # The program goes on, and may answer, before that is noted.
    rekindle.wait(lambda: rekindle.sandbox(name)["state"] == "running", f"{name} to be awake")
    wake = [trace for trace in rekindle.json("trace", name, "--svg", rekindle.root / "wake.svg")["traces"] if trace["operation"] == "wake"][-1]
    return next(phase["from"] for phase in wake["phases"] if phase["name"] == "GPU memory")


def holders(rekindle):
    """Processes that have memory mapped that something sleeps in, or has slept in."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if re.search(rf"{rekindle.run_root}/asleep/\w+/chunks".encode(), (path / "maps").read_bytes()):
                found.add(int(path.name))
        except OSError:
            pass
    return found


@pytest.mark.parametrize("hashes", ["on", "off"])
def test_the_gpu_copies_what_it_knows_and_checks_it(hashes):
    with Rekindle(REKINDLE_GPU_HASH=hashes) as rekindle:
        start(rekindle, "weights", megabytes=FEWER)
        for _ in range(2):
            sleep(rekindle, "weights", FEWER)
            assert asked(rekindle, "weights")
            assert source(rekindle, "weights") == {"registered": FEWER << 20}
        rekindle.wait(lambda: not holders(rekindle), "the memory to be given back")
        sleep(rekindle, "weights", FEWER)
        chunk = next(path for path in rekindle.run_root.glob("asleep/*/chunks/*/*") if path.stat().st_size == 2 << 20)
        flip(chunk)
        with pytest.raises(CommandError) as error:
            rekindle("wake", "weights")
        assert str(chunk) in error.value.message, error.value.message
        assert rekindle.sandbox("weights")["state"] == "asleep"
        flip(chunk)
        assert asked(rekindle, "weights")


def flip(path):
    with open(path, "r+b") as file:
        file.seek(4097)
        byte = file.read(1)[0]
        file.seek(4097)
        file.write(bytes([byte ^ 1]))


def test_whoever_waits_can_end(rekindle):
    start(rekindle, "weights")
    sleep(rekindle, "weights")
    (holder,) = holders(rekindle)
    os.kill(holder, signal.SIGKILL)
    assert asked(rekindle, "weights")

    sleep(rekindle, "weights")
    kill_daemon(rekindle)
    rekindle.wait(lambda: not holders(rekindle), "the worker to end with the daemon")
    # The next daemon has another one wait.
    rekindle.wait(lambda: registered(rekindle), "a worker that waits")
    assert asked(rekindle, "weights")
    assert source(rekindle, "weights") == {"registered": MEGABYTES << 20}

    sleep(rekindle, "weights")
    rekindle("kill", "weights")
    rekindle.wait(lambda: not holders(rekindle), "the worker to let go of what nobody will wake")


def test_of_two_that_sleep_the_later_one_is_waited_for(rekindle):
    start(rekindle, "one")
    start(rekindle, "two", 2)
    sleep(rekindle, "one")
    first = holders(rekindle)
    rekindle("sleep", "two", "--level", "host")
    rekindle.wait(lambda: registered(rekindle) and not holders(rekindle) & first, "the other worker")
    assert asked(rekindle, "one") and "registered" not in source(rekindle, "one")
    assert asked(rekindle, "two")


def test_none_waits_for_what_sleeps_where_none_is_to_wait():
    with Rekindle(REKINDLE_POOL="0") as rekindle:
        start(rekindle, "weights", megabytes=FEWER)
        rekindle("sleep", "weights", "--level", "host")
        assert not list(logs_of_those_that_wait(rekindle))
        assert asked(rekindle, "weights") and "registered" not in source(rekindle, "weights")
