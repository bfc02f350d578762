"""The steps of a program, for `rekindle run --every-steps`."""

from __future__ import annotations

import os

_RUN = "REKINDLE_RUN"
_told = 0


def step() -> None:
    """Tells that a step is done: of a training run, once in each iteration of its loop.

    `rekindle run --every-steps 100` takes an image after each hundred. Elsewhere this does nothing.

    Raises:
        OSError: The number cannot be told.
    """
    global _told
    _told += 1
    directory = os.environ.get(_RUN)
    if directory is None:
        return
    file = os.path.join(directory, "steps")
    # The size is the number. It is set by name, for an image may be taken at any moment, and a file that is open is part of it.
    try:
        os.truncate(file, _told)
    except FileNotFoundError:
        os.mknod(file)
        os.truncate(file, _told)
