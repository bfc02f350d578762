"""Memory that a restored program maps is what its image says, or the program is ended before it goes far."""

import os
import signal
import sys
from pathlib import Path

import pytest
from interleavings import machine
from rekindle import ROOT, CommandError, Rekindle

PHASE = "check what is mapped"
# It says what it finds in its memory once it is let go: a megabyte of each number, or what became of it.
PROGRAM = """
import os, sys, time
held = [bytes([number]) * (1 << 20) for number in range(1, 60)]
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("whole" if all(part == bytes([part[0]]) * (1 << 20) for part in held) else "damaged", flush=True)
"""


@pytest.fixture
def held():
    """A Rekindle that holds checks up, with an image of a program that has not run on since."""
    with Rekindle(REKINDLE_FAULT="mapped-opened:hang") as rekindle:
        yield rekindle, make_image(rekindle)


@pytest.fixture
def made(rekindle):
    return rekindle, make_image(rekindle)


def make_image(rekindle):
    rekindle.run("first", sys.executable, "-c", PROGRAM, rekindle.root / "go")
    assert rekindle.wait_lines("first", 1) == ["ready"]
    rekindle("checkpoint", "first", "--to", "image", "--stop")
    path = Path(rekindle.json("inspect", "image")["path"])
    return max(path.glob("pages/anon-*"), key=lambda file: file.stat().st_blocks)


def flip(file, place=0.5):
    """Changes a byte of what is in the file, and nothing that a look at the file would show."""
    before = file.stat()
    with file.open("r+b", buffering=0) as pages:
        start = os.lseek(pages.fileno(), int(before.st_blocks * 512 * place), os.SEEK_DATA)
        byte = os.pread(pages.fileno(), 1, start)[0]
        os.pwrite(pages.fileno(), bytes([byte ^ 1]), start)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns


def restored(rekindle, name, *options):
    """Restores; a few chunks are looked at before, others each time, which may see the damage already."""
    for _ in range(50):
        try:
            return rekindle.json("restore", "image", "--name", name, *options, "-d")
        except CommandError as error:
            assert "anon-" in error.message and "damaged" in error.message, error.message
    raise AssertionError("whichever chunks are looked at, they have the damage")


def is_ended(rekindle, name):
    rekindle.wait(lambda: not rekindle.sandbox(name)["pid"], f"the end of {name}")
    row = rekindle.sandbox(name)
    assert row["state"] == "killed", row
    assert '"image"' in row["problem"] and "pages/anon-" in row["problem"] and "damaged" in row["problem"], row["problem"]
    assert row["problem"].count("\n") == 0


def all_phases(rekindle, name):
    return rekindle.json("trace", name, "--svg", rekindle.root / "picture.svg")["traces"][-1]["phases"]


def phases(rekindle, name):
    return [phase for phase in all_phases(rekindle, name) if phase["name"] == PHASE]


def checked(rekindle, name):
    """The phase of the check, once it has ended."""
    rekindle.wait(lambda: phases(rekindle, name), f"the check of {name}")
    return phases(rekindle, name)[0]


def test_damage_that_a_glance_does_not_see_ends_the_program(made):
    rekindle, pages = made
    flip(pages)
    restored(rekindle, "second")
    is_ended(rekindle, "second")
    assert rekindle.lines("second") == []
    with pytest.raises(CommandError, match="anon-"):
        rekindle("verify", "image")


def test_what_was_read_is_not_read_again_until_it_changes(made):
    rekindle, pages = made
    restored(rekindle, "a")
    assert checked(rekindle, "a")["bytes"] > 59 << 20
    # Neither further programs nor ended ones change what is known.
    restored(rekindle, "b")
    rekindle("kill", "a")
    rekindle.wait_end("a")
    restored(rekindle, "c")
    (rekindle.root / "go").touch()
    for name in "bc":
        assert rekindle.wait_end(name) == ["whole"]
        assert phases(rekindle, name) == []
    (rekindle.root / "go").unlink()
    flip(pages)
    restored(rekindle, "d")
    is_ended(rekindle, "d")


def test_an_image_that_is_removed_is_checked_all_the_same(held):
    rekindle, pages = held
    flip(pages)
    restored(rekindle, "second")
    rekindle.reached("mapped-opened")
    assert rekindle.sandbox("second")["state"] == "running"
    rekindle("rmi", "image")
    rekindle.let_go("mapped-opened")
    is_ended(rekindle, "second")


def test_the_next_daemon_checks_what_the_last_one_did_not(held):
    rekindle, pages = held
    flip(pages, 0.7)
    restored(rekindle, "second")
    rekindle.reached("mapped-opened")
    daemon = machine.daemon(rekindle)
    os.kill(daemon, signal.SIGKILL)
    rekindle.wait(lambda: not machine.is_alive(daemon) and not machine.threads(daemon)[1:], "the daemon's end")
    rekindle.let_go("mapped-opened")
    is_ended(rekindle, "second")


def test_a_program_that_ended_first_has_the_problem_told(held):
    rekindle, pages = held
    flip(pages)
    restored(rekindle, "second")
    (rekindle.root / "go").touch()
    rekindle.wait_end("second")
    rekindle.reached("mapped-opened")
    rekindle.let_go("mapped-opened")
    rekindle.wait(lambda: rekindle.sandbox("second")["problem"], "the problem")
    assert "had ended before" in rekindle.sandbox("second")["problem"]


def test_a_restore_that_verifies_refuses_before_the_program_runs(made):
    rekindle, pages = made
    flip(pages)
    with pytest.raises(CommandError, match="anon-.*nothing was restored|nothing was restored.*anon-") as error:
        rekindle("restore", "image", "--verify", "-d")
    assert error.value.code == 1 and error.value.message.count("\n") == 0
    assert [row["name"] for row in rekindle.sandboxes()] == ["first"]
    flip(pages)
    restored(rekindle, "second", "--verify")
    assert all_phases(rekindle, "second")[0]["name"] == "verify"
    (rekindle.root / "go").touch()
    assert rekindle.wait_end("second") == ["whole"]
    assert phases(rekindle, "second") == []


def test_a_restore_that_verifies_reads_gpu_memory_too(rekindle):
    rekindle.run("gpu", sys.executable, ROOT / "crates/cli/tests/programs/bump.py", 1_000_000)
    rekindle.wait_lines("gpu", 3)
    rekindle("checkpoint", "gpu", "--to", "image", "--stop")
    path = Path(rekindle.json("inspect", "image")["path"])
    chunk = next(file for file in sorted((path.parent.parent / "chunks").rglob("*")) if file.is_file())
    with chunk.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CommandError, match="nothing was restored") as error:
        rekindle("restore", "image", "--verify", "-d")
    assert chunk.name in error.value.message, error.value.message


def test_advice_that_is_damaged_is_warned_of_and_done_without(made):
    rekindle, _ = made
    rekindle("verify", "image")
    path = Path(rekindle.json("inspect", "image")["path"])
    (path / "first-pages.json").write_text('{"checksum":"' + "0" * 64 + '","runs":[],"restores":1}')
    with pytest.raises(CommandError, match="first-pages.json"):
        rekindle("verify", "image")
    warnings = restored(rekindle, "second")["warnings"]
    assert [warning for warning in warnings if "first-pages.json" in warning and "checksum" in warning], warnings
    (rekindle.root / "go").touch()
    assert rekindle.wait_end("second") == ["whole"]
