"""The sockets that others than Rekindle can reach: whatever is sent there, nothing is left of it, and nobody else notices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from interleavings import machine
from rekindle import PATIENCE, ROOT, Rekindle

FUZZ = ROOT / "tests/doors/fuzz.py"
BUMP = ROOT / "crates/cli/tests/programs/bump.py"
ROUNDS = 150


@pytest.fixture
def rekindle():
    # What the daemon has open is counted: as many workers wait before as after.
    with Rekindle(REKINDLE_POOL_WINDOW="0") as instance:
        yield instance


def daemon_of(rekindle):
    return int((rekindle.state / "lock").read_text().split()[1])


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def workers(rekindle):
    of_it = machine.processes_of(rekindle).items()
    return {pid for pid, words in of_it if words[0].endswith("rekindled") and words[1:2] == ["worker"]}


def is_settled(rekindle):
    """What the daemon opens for the next worker is open then."""
    rekindle.wait(lambda: [spare for spare in rekindle.json("ps")["pool"] if spare["ready"]], "the next worker")


def counted(rekindle, name):
    """The numbers that a program has counted to, among what else is in its log."""
    return [int(line) for line in rekindle.lines(name) if line.isdigit()]


def goes_on(rekindle, name):
    before = len(counted(rekindle, name))
    rekindle.wait(lambda: len(counted(rekindle, name)) > before + 3, f"{name} to go on")
    numbers = counted(rekindle, name)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers


def test_garbage_at_a_programs_own_doors_changes_nothing(rekindle):
    """A process of the sandbox sends it to the admission socket, and to where the daemon talks to the worker and to init."""
    go = rekindle.root / "go"
    doors = " ".join(f"/run/rekindle/{name}.sock" for name in ("gate", "worker-1", "init"))
    fuzz = f"while [ ! -e {go} ]; do sleep 0.01; done; {sys.executable} {FUZZ} 7 {ROUNDS} {doors}; exec sleep infinity"
    rekindle.run("program", "sh", "-c", f"({fuzz}) & exec {sys.executable} {BUMP}")
    goes_on(rekindle, "program")
    is_settled(rekindle)
    before = rekindle.sandbox("program")
    daemon, processes = daemon_of(rekindle), len(workers(rekindle))
    open_before = descriptors(daemon)
    go.touch()
    rekindle.wait(lambda: "fuzzed" in rekindle.lines("program"), "the garbage to be sent")
    goes_on(rekindle, "program")
    rekindle.wait(lambda: descriptors(daemon) <= open_before, f"{open_before} open descriptors; there are {os.listdir(f'/proc/{daemon}/fd')}")
    rekindle.wait(lambda: len(workers(rekindle)) <= processes, "the workers that nobody took up with to end")
    after = rekindle.sandbox("program")
    assert (after["problem"], after["workers"]) == (None, before["workers"])
    assert daemon_of(rekindle) == daemon and machine.is_alive(daemon)
    rekindle("checkpoint", "program", "--to", "image", "--leave-running")
    rekindle("sleep", "program", "--level", "host")
    goes_on(rekindle, "program")


def test_garbage_at_the_daemons_socket_changes_nothing(rekindle):
    rekindle.run("program", sys.executable, BUMP)
    goes_on(rekindle, "program")
    is_settled(rekindle)
    daemon = daemon_of(rekindle)
    open_before = descriptors(daemon)
    # A process outside of the sandbox is no client of its admission socket either.
    (gate,) = (rekindle.run_root / "run").glob("*/gate.sock")
    command = [sys.executable, FUZZ, "8", str(ROUNDS), rekindle.environment["REKINDLE_SOCKET"], gate]
    subprocess.run(command, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
    goes_on(rekindle, "program")
    rekindle.wait(lambda: descriptors(daemon) <= open_before, f"{open_before} open descriptors")
    assert daemon_of(rekindle) == daemon and machine.is_alive(daemon)
    shown = rekindle.sandbox("program")
    assert shown["problem"] is None and len(shown["workers"]) == 1


def test_who_says_nothing_holds_nobody_up(rekindle):
    """Connections that never ask for anything are closed in time, and others are answered meanwhile."""
    rekindle.run("program", "sleep", "infinity")
    is_settled(rekindle)
    daemon = daemon_of(rekindle)
    open_before = descriptors(daemon)
    silent = "import socket, sys, time\nheld = [socket.socket(socket.AF_UNIX) for _ in range(100)]\n[one.connect(sys.argv[1]) for one in held]\nprint('held', flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", silent, rekindle.environment["REKINDLE_SOCKET"]], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert rekindle.sandbox("program")["pid"]
        rekindle.wait(lambda: descriptors(daemon) <= open_before, "the silent connections to be closed")
        process.kill()
    assert Path(f"/proc/{daemon}").exists()
