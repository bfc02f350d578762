"""What CRIU cannot take is not given to a program, unless the user says so."""

import sys
from pathlib import Path

import pytest
from rekindle import CommandError

RING = Path(__file__).parent / "ring.py"


def test_a_program_does_without_io_uring_before_and_after_a_restore(rekindle):
    go = rekindle.root / "go"
    rekindle.run("ring", sys.executable, RING, go)
    assert rekindle.wait_lines("ring", 1) == ["ENOSYS"]
    rekindle("checkpoint", "ring", "--to", "image", "--stop")
    rekindle.restore("image", "again")
    go.touch()
    assert rekindle.wait_end("again") == ["ENOSYS"]


def test_a_program_that_was_given_it_is_refused_with_the_way_out(rekindle):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--name", "ring", "--allow", "io_uring", "--", sys.executable, RING, go)
    (line,) = rekindle.wait_lines("ring", 1)
    if not line.isdigit():
        pytest.skip(f"this machine gives nobody an io_uring: {line}")
    with pytest.raises(CommandError) as refusal:
        rekindle("checkpoint", "ring", "--to", "image", "--leave-running")
    message = refusal.value.message
    pid = rekindle.sandbox("ring")["pid"]
    assert f"process {pid} (" in message and f"an io_uring as descriptor {line}" in message and "--allow" in message
    go.touch()
    assert rekindle.wait_end("ring")[-1].isdigit(), "it goes on"


def test_what_nobody_withholds_cannot_be_allowed(rekindle):
    with pytest.raises(CommandError) as refusal:
        rekindle("run", "-d", "--allow", "everything", "--", "true")
    assert refusal.value.code == 2 and "io_uring" in refusal.value.message
