"""SIGINT and SIGTERM end a program between two commands, and not in the middle of one: it knows then what is to be taken back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """And not the end that user code has asked for."""


depth = 0
pending: int | None = None


def catch() -> None:
    for number in NUMBERS:
        signal.signal(number, came)


def came(number: int, _frame: FrameType | None) -> None:
    global pending
    if depth:
        pending = number
    else:
        raise Interrupted(128 + number)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """What is in here is carried out whole."""
    global depth
    depth += 1
    try:
        yield
    finally:
        depth -= 1
    if pending is not None and not depth:
        raise Interrupted(128 + pending)
