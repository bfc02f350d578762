"""Functions that wait, for programs with an event loop too: `f(x)` waits, `await f.aio(x)` lets others go on meanwhile.

What waits does so in a thread either way.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

# More than the usual pool of a loop has: most of them only wait for an answer.
THREADS = 256


@functools.cache
def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "rekindle")


def begin(function: Callable[[], R]) -> Future[R]:
    """Has it done in a thread, in this context."""
    return threads().submit(contextvars.copy_context().run, function)


class Both(Generic[P, R]):
    """A function that waits, and its twin for an event loop."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.wrap_future(begin(functools.partial(self.function, *args, **kwargs)))


class both(Generic[S, P, R]):  # noqa: N801
    """A method of which there are both."""

    def __init__(self, function: Callable[Concatenate[S, P], R]) -> None:
        self.function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: type[S]) -> both[S, P, R]: ...
    @overload
    def __get__(self, instance: S, owner: type[S]) -> Both[P, R]: ...
    def __get__(self, instance: S | None, owner: type[S]) -> Any:
        return self if instance is None else Both(functools.partial(self.function, instance))
