"""What is served: the user's function or object, its hooks, and calls of it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rekindle import exchange, tracing
from rekindle.declaration import Declaration
from rekindle.errors import DataError, RefNotFoundError
from rekindle.exchange import Ref, drop_all, end_uses
from rekindle.marks import Mark
from rekindle.named_data import CHOSEN, choose, current
from rekindle.passing import PLAIN, UNTAKEN, HandingOn, references_in, resolve
from rekindle.serving.batch import Batcher
from rekindle.serving.caches import empty_caches
from rekindle.serving.failures import Late, Raised, Unknown, Untaken
from rekindle.serving.parameters import Parameters

Span = contextlib.AbstractContextManager[object]
# Seconds until one who calls knows that an answer was lost.
NOTICED = 1.0


class Target:
    """Synchronous code runs in threads, as many as there may be calls; with one, all of it has that thread for itself."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration, self.limits = declaration, declaration.limits
        self.threads = self.new_threads()
        self.places = asyncio.Semaphore(self.limits.concurrency)
        self.under_way = 0
        self.object: Any = None
        self.methods: dict[str, Callable[..., Any]] = {}
        self.batchers: dict[str, Batcher] = {}
        self.parameters: dict[str, Parameters] = {}
        self.woken: asyncio.Task[None] | None = None

    def new_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.limits.concurrency, "rekindle")

    async def enter(self) -> None:
        """Makes the object, and has it enter: all that is to be in the image."""
        user = self.declaration.user
        self.object = await self.run(user) if self.declaration.is_class else None
        await self.hooks(lambda mark: mark.enters)
        for name, mark in self.declaration.marks():
            if mark.is_method:
                self.methods[name] = function = self.bound(name)
                self.parameters[name] = Parameters(function)
                if mark.batched:
                    self.batchers[name] = Batcher(function, mark.batched, self.run_in_time)
        # Where memory comes at the first use, an image has none that nobody uses.
        if self.limits.share_memory == "lazy":
            await self.run(empty_caches)

    def bound(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self.object, name) if self.declaration.is_class else self.declaration.user
        return function

    async def hooks(self, are_due: Callable[[Mark], bool]) -> None:
        for name, mark in self.declaration.marks():
            if are_due(mark):
                await self.run(self.bound(name))

    async def wake(self) -> None:
        """Has a restored instance enter, once, whoever comes first. The image is taken before anybody comes."""
        if self.woken is None:
            self.woken = asyncio.ensure_future(self.hooks(lambda mark: mark.enters_restored))
        # Others wait for it too, whatever becomes of this one.
        await asyncio.shield(self.woken)

    async def leave(self) -> None:
        if self.under_way:
            self.threads = self.new_threads()
        await self.hooks(lambda mark: mark.exits)

    @contextlib.asynccontextmanager
    async def with_data(self, named: Iterable[str]) -> AsyncIterator[None]:
        """What runs in it finds the objects that these headers name in place of declared data. They go from the GPU with it."""
        chosen = choose(self.declaration.data, named)
        token = CHOSEN.set(chosen)
        try:
            yield
        finally:
            CHOSEN.reset(token)
            for data in chosen.values():
                self.threads.submit(data.drop)

    async def call(self, name: str, args: list[Any], kwargs: dict[str, Any], handing_on: HandingOn | None = None, has_arrays: bool = False) -> Any:
        """`has_arrays`: references or arrays of a GPU are among the arguments."""
        if name not in self.methods:
            raise Unknown(f"{self.declaration.service.full_name} has no method {name!r}; it has {', '.join(self.methods) or 'none'}")
        with tracing.span("queue"):
            await self.places.acquire()
        self.under_way += 1
        try:
            if handing_on is None:
                return await self.carry_out(name, args, kwargs)
            used: list[Ref] = []
            try:
                if has_arrays:
                    args, kwargs = await self.take(name, args, kwargs, handing_on, used)
                return await self.hand_on(name, args, kwargs, handing_on, used)
            except BaseException:
                # Of a call that failed, took too long or whose caller has gone: its frames have the arrays, and are part of a cycle.
                if used or not handing_on.held:
                    asyncio.get_running_loop().call_soon(gc.collect)
                raise
            finally:
                # The caller lets go of its arrays, not of the copies that were made of them here.
                if used and handing_on.held and handing_on.place != exchange.place():
                    self.threads.submit(end_uses, used)
        finally:
            self.under_way -= 1
            self.places.release()

    async def carry_out(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        batcher = self.batchers.get(name)
        if batcher:
            with tracing.span("batch"):
                return await batcher.call(args, kwargs)
        return await self.run_in_time(functools.partial(self.methods[name], *args, **kwargs))

    async def take(
        self, name: str, args: list[Any], kwargs: dict[str, Any], handing_on: HandingOn, used: list[Ref]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with arrays in place of references that were given, which are noted."""

        def take() -> tuple[list[Any], dict[str, Any]]:
            return self.parameters[name].made(*resolve((args, kwargs), used))

        try:
            taken: tuple[list[Any], dict[str, Any]] = await self.run(take, tracing.span("arrays"))
            return taken
        except Raised as raised:
            if handing_on.held and isinstance(raised.error, UNTAKEN):
                raise Untaken(str(raised.error)) from raised
            if handing_on.again and isinstance(raised.error, RefNotFoundError):
                raise Raised(self.came_too_late(name, raised.error)) from raised
            raise

    async def hand_on(self, name: str, args: list[Any], kwargs: dict[str, Any], handing_on: HandingOn, used: list[Ref]) -> Any:
        """What was taken, and is not held by the caller, has a use, which is over when the call has a result, or a while later if
        it may be made again; of all its tries the first that has one ends it."""
        value = await self.carry_out(name, args, kwargs)
        if type(value) in PLAIN and not used:
            return value
        retries = self.limits.retries
        nobody = threading.Event()
        made: list[Ref] = []

        def finish() -> Any:
            begin, given = tracing.now(), [0]
            result = handing_on.put(value, given)
            if given[0]:
                made.extend(one for one in references_in(result) if one.given)
            if nobody.is_set():
                drop_all(made)
            if given[0]:
                tracing.note("arrays", begin)
            if not retries.max_retries and not handing_on.held:
                end_uses(used)
            return result

        try:
            result = await self.run(finish)
        except asyncio.CancelledError:
            # Who was to have the result has gone. What is put from now on is dropped there.
            nobody.set()
            self.threads.submit(drop_all, made)
            raise
        if used and retries.max_retries and not handing_on.again and not handing_on.held:
            # Should the answer be lost, the next try finds them.
            wait = min(retries.span() + NOTICED, handing_on.expiry)
            asyncio.get_running_loop().call_later(wait, lambda: self.threads.submit(end_uses, used))
        return result

    def came_too_late(self, name: str, error: BaseException) -> RefNotFoundError:
        return RefNotFoundError(
            f"{self.declaration.service.full_name}.{name} was called again, for its answer was lost, and what it was given is not there "
            f"any more: {error}; run the workflow again, or have the call made again sooner"
        )

    async def run_in_time(self, function: Callable[[], Any]) -> Any:
        limit = asyncio.timeout(self.limits.timeout)
        try:
            async with limit:
                return await self.run(function, tracing.method())
        except TimeoutError:
            name = self.declaration.service.full_name
            raise Late(f"{name} took longer than {self.limits.timeout:g} s; raise `timeout`, or have it do less") from None

    async def run(self, function: Callable[[], Any], span: Span | None = None) -> Any:
        """Its value. A coroutine has the loop, all else a thread. It may be a span of the request's."""
        spanned = span or contextlib.nullcontext()
        if is_coroutine(function):
            try:
                with spanned:
                    value = await function()
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self.check_data(error)
                raise Raised(error) from error
            self.check_data(None)
            await self.finish_data(None)
            return value
        threads = self.threads
        try:
            value, raised = await asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, outcome, function, spanned)
        except asyncio.CancelledError:
            # Its thread cannot be stopped. The others go on there to their ends, and who comes gets another one.
            if self.threads is threads:
                self.threads = self.new_threads()
                threads.shutdown(wait=False)
            raise
        self.check_data(raised)
        await self.finish_data(raised)
        if raised is not None:
            raise Raised(raised) from raised
        return value

    async def finish_data(self, raised: BaseException | None) -> None:
        """What was dumped is in its store when the call ends; that it is not is why a call fails that did not fail otherwise."""
        for data in map(current, self.declaration.data.values()):
            if data.is_dumping:
                with tracing.span("dump"):
                    _, problem = await asyncio.get_running_loop().run_in_executor(self.threads, outcome, data.finish)
                if problem is not None and raised is None:
                    raise Raised(problem) from problem

    def check_data(self, raised: BaseException | None) -> None:
        """Data that could not be had is why a call failed that wanted it, whatever it met; one that did not fail has no use."""
        if isinstance(raised, DataError):
            return
        try:
            for data in map(current, self.declaration.data.values()):
                data.check()
        except DataError as error:
            raise Raised(error) from raised


def outcome(function: Callable[[], Any], within: Span | None = None) -> tuple[Any, BaseException | None]:
    """Whatever it raises must not end the thread's loop."""
    try:
        with within or contextlib.nullcontext():
            return function(), None
    except BaseException as error:
        return None, error


def is_coroutine(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function)
