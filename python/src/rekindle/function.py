"""Functions as their callers see them."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, ParamSpec, TypeVar, cast

from rekindle.address import Service
from rekindle.both import Both, begin, both
from rekindle.client import Client

P = ParamSpec("P")
R = TypeVar("R")

# How many calls of one `map` are under way.
WINDOW = 32


class FunctionCall(Generic[R]):
    """A call that goes on in a thread of this program."""

    def __init__(self, future: Future[R]) -> None:
        self.future = future

    @both
    def get(self, timeout: float | None = None) -> R:
        """The result. TimeoutError if there is none after so many seconds; the call goes on."""
        return self.future.result(timeout)

    def done(self) -> bool:
        return self.future.done()


class Map(Generic[R]):
    """Calls with one argument after the other, several at once, results in the arguments' order."""

    def __init__(self, call: Callable[..., R]) -> None:
        self.call = call

    def __call__(self, *inputs: Iterable[Any], window: int = WINDOW, return_exceptions: bool = False) -> Iterator[R]:
        """With `return_exceptions` an exception stands in the place of its result. `window` calls are under way at most."""
        under_way: deque[Future[R]] = deque()
        try:
            for arguments in zip(*inputs, strict=False):
                under_way.append(begin(functools.partial(self.call, *arguments)))
                if len(under_way) >= max(1, window):
                    yield outcome(under_way.popleft(), return_exceptions)
            while under_way:
                yield outcome(under_way.popleft(), return_exceptions)
        finally:
            for future in under_way:
                future.cancel()

    async def aio(self, *inputs: Iterable[Any], window: int = WINDOW, return_exceptions: bool = False) -> AsyncIterator[R]:
        results = self(*inputs, window=window, return_exceptions=return_exceptions)
        end = object()
        step = Both(lambda: next(results, end))
        while (value := await step.aio()) is not end:
            yield cast(R, value)


def outcome(future: Future[R], return_exceptions: bool) -> R:
    try:
        return future.result()
    except Exception as error:
        if return_exceptions:
            return cast(R, error)
        raise


class Function(Generic[P, R]):
    """`f.remote(x)`, `f.map(xs)`, `f.spawn(x)`; `f.local(x)` and `f(x)` run it here."""

    def __init__(self, client: Client, name: str, user: Callable[P, R] | None = None) -> None:
        self.client, self.name, self.user = client, name, user
        if user is not None:
            functools.update_wrapper(self, user)

    @classmethod
    def from_name(cls, app: str, name: str, *, url: str | None = None, token: str | None = None) -> Function[..., Any]:
        """A function that is deployed; its service's URL if that is on another machine, and a token of its tenant if it has one."""
        return Function(Client(Service(app, name, url, token)), name)

    def __repr__(self) -> str:
        return f"rekindle.Function({self.client.service.full_name!r}, {self.name!r})"

    def call(self, patient: bool, *args: Any, **kwargs: Any) -> R:
        return cast(R, self.client.call(self.name, args, kwargs, patient))

    @property
    def remote(self) -> Both[P, R]:
        """Calls it and waits for its result."""
        return cast(Both[P, R], Both(functools.partial(self.call, False)))

    @property
    def map(self) -> Map[R]:
        return Map(functools.partial(self.call, True))

    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> FunctionCall[R]:
        """Calls it, and leaves the result for later."""
        return FunctionCall(begin(functools.partial(self.remote, *args, **kwargs)))

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs it in this program."""
        if self.user is None:
            raise TypeError(f"{self!r} is known by name alone, and cannot run here; use .remote()")
        return self.user(*args, **kwargs)

    __call__ = local
