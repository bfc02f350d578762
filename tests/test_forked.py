"""Children of programs that use the GPU."""

import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "forked/child.py"


def test_a_child_has_no_file_that_was_open_for_a_moment_and_its_image_comes_back(rekindle):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--name", "forks", "--gpu", rekindle.gpu, "--", sys.executable, PROGRAM, go)
    assert rekindle.wait_lines("forks", 1) == ["ready"], rekindle.lines("forks")
    rekindle("checkpoint", "forks", "--to", "image", "--stop")
    rekindle.restore("image", "again")
    go.touch()
    assert rekindle.wait_lines("again", 2) == ["child False True", "parent {7}"]
