"""`checkpoint --prove`: an image is one when it was restored beside the program that it was taken of."""

import fcntl
import functools
import socket
import sys
import time
from pathlib import Path

import pytest
from rekindle import ROOT, CommandError, Rekindle

SERVER = Path(__file__).parent / "generations/server.py"
COUNTER = ROOT / "crates/cli/tests/programs/bump.py"


@functools.cache
def ports():
    """Whether CRIU takes internet sockets on this kernel: before 4.2 it does not under Linux 6.16 and newer."""
    listens = "import socket, time; server = socket.create_server(('127.0.0.1', 0)); print(1, flush=True); time.sleep(3600)"
    with Rekindle() as rekindle:
        rekindle.run("a", sys.executable, "-c", listens)
        rekindle.wait_lines("a", 1)
        try:
            rekindle("checkpoint", "a", "--to", "x", "--stop")
        except CommandError as error:
            assert "CRIU 4.2" in error.message
            return "none"
        return "ports"


def begin(rekindle):
    directory = rekindle.root / "served"
    directory.mkdir()
    (directory / "opened-file").write_text("contents")
    rekindle.run("a", sys.executable, SERVER, directory, ports(), "lock")
    assert rekindle.wait_lines("a", 1) == ["ready"]
    return directory


def greet(directory):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(120)
        client.connect(str(directory / "socket"))
        assert client.recv(4) == b"here"


def phases(report):
    return [phase["name"] for phase in report["phases"]]


def is_alone(rekindle, name):
    """Nothing of a proof is left."""
    live = [row["name"] for row in rekindle.sandboxes() if row["pid"]]
    return live == [name] and len(list((rekindle.run_root / "run").iterdir())) == 1


def test_a_program_keeps_what_is_its_own_while_its_image_is_proven(rekindle):
    directory = begin(rekindle)
    report = rekindle.json("checkpoint", "a", "--to", "one", "--prove", "--leave-running")
    assert "prove" in phases(report) and report["warnings"] == []
    assert is_alone(rekindle, "a")
    greet(directory)
    assert "prove" not in phases(rekindle.json("checkpoint", "a", "--to", "two", "--leave-running"))
    report = rekindle.json("checkpoint", "a", "--to", "three", "--prove", "--stop")
    assert "prove" in phases(report)
    (directory / "socket").unlink()
    rekindle.restore("three", "a")
    greet(directory)


@pytest.mark.parametrize("after", ["--stop", "--leave-running"])
def test_an_image_that_criu_refuses_is_none(after):
    with Rekindle(REKINDLE_FAULT="frozen:hang", REKINDLE_PROVE="on") as rekindle:
        directory = begin(rekindle)
        checkpoint = rekindle.begin("checkpoint", "a", "--to", "x", after)
        rekindle.reached("frozen")
        (images,) = (rekindle.state / "dumps").iterdir()
        files = images / "files.img"
        files.write_bytes(files.read_bytes().replace(b"opened-file", b"absent-file"))
        rekindle.let_go("frozen")
        with pytest.raises(CommandError, match="did not come back when it was proven.*absent-file"):
            checkpoint.end()
        assert rekindle.json("images")["images"] == []
        assert is_alone(rekindle, "a")
        greet(directory)
        rekindle("checkpoint", "a", "--to", "x", after)


def test_an_image_that_is_not_proven_is_none_although_somebody_has_held_it():
    with Rekindle(REKINDLE_FAULT="proof-begun:hang,proof-complete:fail") as rekindle:
        begin(rekindle)
        checkpoint = rekindle.begin("checkpoint", "a", "--to", "x", "--prove", "--leave-running")
        rekindle.reached("proof-begun")
        (manifest,) = rekindle.state.glob("store/images/*/manifest.json")
        with manifest.open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            rekindle.let_go("proof-begun")
            rekindle.wait(lambda: is_alone(rekindle, "a"), "the end of the proof")
            # It is to be removed now.
            time.sleep(0.5)
        with pytest.raises(CommandError, match="did not come back when it was proven"):
            checkpoint.end()
        assert rekindle.json("images")["images"] == []


def test_both_halves_are_proven(rekindle):
    rekindle.run("a", sys.executable, COUNTER)
    rekindle.wait_lines("a", 3)
    for number, after in enumerate(["--leave-running", "--leave-running", "--stop"]):
        report = rekindle.json("checkpoint", "a", "--to", f"x{number}", "--prove", after)
        assert "prove" in phases(report) and report["warnings"] == []
    rekindle.restore("x2", "b")
    rekindle.wait_lines("b", 3)


ON_BOTH = """
import sys, time
sys.path.insert(0, sys.argv[1])
from gpu import call, open_device
for device in range(2):
    open_device(device)
    call("cuMemAlloc", 40 << 20)
print("ready", flush=True)
time.sleep(1000)
"""


def test_a_proof_needs_room_on_each_gpu_for_what_is_there(rekindle):
    features = Path(__file__).parent / "features"
    two = "emulated:0,1,memory=64M"
    rekindle("run", "-d", "--name", "a", "--gpu", two, "--", sys.executable, "-c", ON_BOTH, features)
    assert rekindle.wait_lines("a", 1) == ["ready"]
    report = rekindle.json("checkpoint", "a", "--to", "x", "--prove", "--leave-running")
    assert "prove" in phases(report) and report["warnings"] == []


def test_a_daemon_that_dies_in_a_proof_leaves_the_program_running_and_no_image():
    with Rekindle(REKINDLE_FAULT="proof-begun:kill") as rekindle:
        directory = begin(rekindle)
        with pytest.raises(CommandError):
            rekindle("checkpoint", "a", "--to", "x", "--prove", "--stop")
        rekindle.environment.pop("REKINDLE_FAULT")
        rekindle.wait(lambda: rekindle.sandbox("a")["state"] == "running", "the program to go on")
        assert is_alone(rekindle, "a")
        greet(directory)
        # The next daemon has removed what nobody has proven.
        assert rekindle.json("images")["images"] == []
        assert not list((rekindle.state / "unproven").iterdir())
