"""How far training programs go: none ends, or comes to a step, before the test that wants it there."""

import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
NO_LIMIT = 10**9


class Pace:
    """Of the training programs of one Rekindle, and of what is restored from their images."""

    def __init__(self, rekindle, steps):
        self.file = rekindle.root / "steps"
        self.to(steps)

    def command(self, *options, program=PROGRAM):
        return [sys.executable, program, self.file, *options]

    def to(self, steps):
        """They wait when they have taken so many."""
        # A link says it, which is never open: a restore would find a file changed that was.
        new = self.file.with_suffix(".new")
        new.symlink_to(str(steps))
        new.rename(self.file)

    def end(self):
        self.to(NO_LIMIT)
