"""Children of programs that use the GPU."""

import os
import signal
import sys
from pathlib import Path

from interleavings import machine

PROGRAM = Path(__file__).parent / "forked/child.py"
WAKES = Path(__file__).parent / "forked/waking.py"


def test_a_child_has_no_file_that_was_open_for_a_moment_and_its_image_comes_back(rekindle):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--name", "forks", "--gpu", rekindle.gpu, "--", sys.executable, PROGRAM, go)
    assert rekindle.wait_lines("forks", 1) == ["ready"], rekindle.lines("forks")
    rekindle("checkpoint", "forks", "--to", "image", "--stop")
    rekindle.restore("image", "again")
    go.touch()
    assert rekindle.wait_lines("again", 2) == ["child False True", "parent {7}"]


def test_a_child_has_no_connection_by_which_its_parent_is_woken(rekindle):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--name", "forks", "--gpu", rekindle.gpu, "--", sys.executable, WAKES, go)
    assert rekindle.wait_lines("forks", 1) == ["ready"], rekindle.lines("forks")
    rekindle("sleep", "forks")
    (daemon,) = (pid for pid, words in machine.processes_of(rekindle).items() if words[1:2] == ["--background"])
    os.kill(daemon, signal.SIGSTOP)
    try:
        go.touch()
        child = go.with_suffix(".child")
        rekindle.wait(lambda: child.exists() and child.read_text(), "a child")
        # Its parent's own connection, to its worker, was closed too.
        assert child.read_text() == "0"
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert rekindle.wait_lines("forks", 2)[1:] == ["woken {7}"]
    rekindle("checkpoint", "forks", "--to", "image", "--stop")
    rekindle.restore("image", "again")
