"""What an instance does when it rests: frameworks give GPU memory back that they keep for themselves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

# An instance that has had no call for so long rests, seconds.
QUIET = 0.1


class Rest:
    """`run` has something done in a thread of the instance's."""

    def __init__(self, run: Callable[[Callable[[], None]], object]) -> None:
        self.run = run
        self.timer: asyncio.TimerHandle | None = None

    def begin_call(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def end_call(self, under_way: int) -> None:
        if under_way == 0:
            self.begin_call()
            self.timer = asyncio.get_running_loop().call_later(QUIET, self.run, give_back)


def give_back() -> None:
    """Has torch give back the memory that no tensor has, if the program has imported and used it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.empty_cache()
