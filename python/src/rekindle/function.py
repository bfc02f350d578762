"""Functions as their callers see them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar, cast

from rekindle.address import Service
from rekindle.both import Both, result_of
from rekindle.client import Client

P = ParamSpec("P")
R = TypeVar("R")

# How many calls of one `map` are under way.
WINDOW = 32


class Get(Generic[R]):
    """Waits for the result of a call."""

    def __init__(self, future: Future[R]) -> None:
        self.future = future

    def __call__(self, timeout: float | None = None) -> R:
        return self.future.result(timeout)

    async def aio(self, timeout: float | None = None) -> R:
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(asyncio.wrap_future(self.future))
        except TimeoutError:
            # It may be that of the call.
            if self.future.done():
                return self.future.result()
            raise


class FunctionCall(Generic[R]):
    """A call that goes on in a thread of this program."""

    def __init__(self, future: Future[R]) -> None:
        self.future = future

    @property
    def get(self) -> Get[R]:
        """The result. TimeoutError if there is none after so many seconds; the call goes on."""
        return Get(self.future)

    def done(self) -> bool:
        return self.future.done()


class Map(Generic[R]):
    """Calls with one argument after the other, several at once, results in the arguments' order."""

    def __init__(self, begin: Callable[..., Future[R]]) -> None:
        self.begin = begin

    def __call__(self, *inputs: Iterable[Any], window: int = WINDOW, return_exceptions: bool = False) -> Iterator[R]:
        """With `return_exceptions` an exception stands in the place of its result. `window` calls are under way at most."""
        under_way: deque[Future[R]] = deque()
        try:
            for arguments in zip(*inputs, strict=False):
                under_way.append(self.begun(arguments))
                if len(under_way) >= max(1, window):
                    yield outcome(under_way.popleft(), return_exceptions)
            while under_way:
                yield outcome(under_way.popleft(), return_exceptions)
        finally:
            for future in under_way:
                future.cancel()

    def begun(self, arguments: tuple[Any, ...]) -> Future[R]:
        """A call with what the arguments are now. What cannot be sent is what it comes to."""
        try:
            return self.begin(*arguments)
        except Exception as error:
            failed: Future[R] = Future()
            failed.set_exception(error)
            return failed

    async def aio(self, *inputs: Iterable[Any], window: int = WINDOW, return_exceptions: bool = False) -> AsyncIterator[R]:
        under_way: deque[Future[R]] = deque()
        given = zip(*inputs, strict=False)

        def following() -> Future[R] | None:
            arguments = next(given, None)
            return None if arguments is None else self.begun(arguments)

        # What is mapped may wait for anything before it has the next one, calls too: it has a thread for itself.
        its_thread = ThreadPoolExecutor(1, "rekindle-map")
        try:
            while (begun := await result_of(its_thread.submit(contextvars.copy_context().run, following))) is not None:
                under_way.append(begun)
                if len(under_way) >= max(1, window):
                    yield await outcome_in_loop(under_way.popleft(), return_exceptions)
            while under_way:
                yield await outcome_in_loop(under_way.popleft(), return_exceptions)
        finally:
            its_thread.shutdown(wait=False)
            for future in under_way:
                future.cancel()


def outcome(future: Future[R], return_exceptions: bool) -> R:
    try:
        return future.result()
    except Exception as error:
        if return_exceptions:
            return cast(R, error)
        raise


async def outcome_in_loop(future: Future[R], return_exceptions: bool) -> R:
    try:
        return await result_of(future)
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
    def from_name(
        cls, app: str, name: str, *, url: str | None = None, token: str | None = None, tenant: str | None = None, ca: str | None = None
    ) -> Function[..., Any]:
        """A function that is deployed; its service's URL if that is on another machine, and its tenant, with a token, if it has one. `ca`: a
        file in PEM of the authorities that are trusted where the URL is https; none: that of REKINDLE_CA, or else the system's."""
        return Function(Client(Service(app, name, url, token, tenant, ca)), name)

    def __repr__(self) -> str:
        return f"rekindle.Function({self.client.service.full_name!r}, {self.name!r})"

    def call(self, patient: bool, *args: Any, **kwargs: Any) -> R:
        return cast(R, self.client.call(self.name, args, kwargs, patient))

    def begin(self, patient: bool, *args: Any, **kwargs: Any) -> Future[R]:
        """Has it called, with what the arguments are now."""
        return self.client.prepare(self.name, args, kwargs, patient).begin()

    @property
    def remote(self) -> Both[P, R]:
        """Calls it and waits for its result."""
        return cast(Both[P, R], Both(functools.partial(self.call, False)))

    @property
    def map(self) -> Map[R]:
        return Map(functools.partial(self.begin, True))

    def with_data(self, **urls: str) -> Function[P, R]:
        """The same function, whose calls have other objects for data that is declared with `override`:
        `Model().predict.with_data(weights="s3://bucket/other").remote(x)`."""
        return WithData(self, urls)

    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> FunctionCall[R]:
        """Calls it with what the arguments are now, and leaves the result for later."""
        return FunctionCall(self.begin(False, *args, **kwargs))

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs it in this program."""
        if self.user is None:
            raise TypeError(f"{self!r} is known by name alone, and cannot run here; use .remote()")
        return self.user(*args, **kwargs)

    __call__ = local


class WithData(Function[P, R]):
    """A function whose calls name objects in place of declared data."""

    def __init__(self, function: Function[P, R], urls: dict[str, str]) -> None:
        super().__init__(function.client.with_data(urls), function.name)
        self.urls = urls

    def with_data(self, **urls: str) -> Function[P, R]:
        return WithData(self, self.urls | urls)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        raise TypeError(f"{self!r} has data of its own for its calls, and cannot run here; use .remote()")

    __call__ = local
