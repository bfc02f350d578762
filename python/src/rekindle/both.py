"""Functions that wait, for programs with an event loop too: `f(x)` waits, `await f.aio(x)` lets others go on meanwhile.

What waits for others than this program does so in one of a number of threads. None of them waits for what another one of them is
to do, so that however much is begun at once, all of it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
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


def begin(function: Callable[[], R], context: contextvars.Context | None = None) -> Future[R]:
    """Has it done in a thread, in this context or a copy of that one. It waits for nothing that was begun so."""
    context = contextvars.copy_context() if context is None else context.copy()
    return threads().submit(context.run, function)


async def result_of(future: Future[R]) -> R:
    """What it has come to, awaited."""
    # Of an exception of this type asyncio has a copy, without its notes.
    with contextlib.suppress(TimeoutError):
        return await asyncio.wrap_future(future)
    return future.result()


class Both(Generic[P, R]):
    """A function that waits, and its twin for an event loop.

    One that waits for what is done in threads, as `begin` has it, says how that is begun.
    """

    def __init__(self, function: Callable[P, R], beginning: Callable[P, Future[R]] | None = None) -> None:
        self.function, self.beginning = function, beginning
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R:
        beginning = self.beginning or (lambda *args, **kwargs: begin(functools.partial(self.function, *args, **kwargs)))
        return await result_of(beginning(*args, **kwargs))


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
