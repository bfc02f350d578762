"""Calls collected into one: each argument becomes a list, and each caller gets an element of the list that is returned."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from rekindle import tracing
from rekindle.marks import Batched
from rekindle.named_data import CHOSEN, Chosen, key_of
from rekindle.serving.failures import Raised

Here = tuple[tracing.Trace, str] | None
Waiting = tuple[inspect.BoundArguments, asyncio.Future[Any], Chosen, Here]
Run = Callable[[Callable[[], Any]], Awaitable[Any]]


class Batcher:
    def __init__(self, function: Callable[..., Any], limits: Batched, run: Run) -> None:
        self.function, self.limits, self.run = function, limits, run
        self.signature = inspect.signature(function)
        self.waiting: list[Waiting] = []
        self.timer: asyncio.TimerHandle | None = None
        # A loop keeps no task by itself.
        self.batches: set[asyncio.Task[None]] = set()

    async def call(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Raised(error) from error
        bound.apply_defaults()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.waiting.append((bound, future, CHOSEN.get(), tracing.HERE.get()))
        if len(self.waiting) >= self.limits.max_batch_size:
            self.send()
        elif self.timer is None:
            self.timer = loop.call_later(self.limits.wait_ms / 1000, self.send)
        return await future

    def send(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None
        # Whoever has gone meanwhile needs no answer.
        batch = [waiting for waiting in self.waiting if not waiting[1].done()]
        self.waiting = []
        # Those that have named other data have a batch of their own.
        apart: dict[Any, list[Waiting]] = {}
        for waiting in batch:
            apart.setdefault(key_of(waiting[2]), []).append(waiting)
        for together in apart.values():
            task = asyncio.ensure_future(self.carry_out(together))
            self.batches.add(task)
            task.add_done_callback(self.batches.discard)

    async def carry_out(self, batch: list[Waiting]) -> None:
        # The task is this batch's alone.
        CHOSEN.set(batch[0][2])
        calls = [here for *_, here in batch]
        trace = tracing.together(calls)
        tracing.HERE.set((trace, "") if trace else None)
        together = self.signature.bind_partial()
        for name in batch[0][0].arguments:
            together.arguments[name] = [bound.arguments[name] for bound, *_ in batch]
        try:
            values = await self.run(bind(self.function, together))
            if not hasattr(values, "__len__") or len(values) != len(batch):
                raise TypeError(
                    f"{self.function.__qualname__} returned {type(values).__name__} for a batch of {len(batch)}; return a list of as many"
                )
        except Exception as error:
            tell(trace, calls)
            for _, future, *_ in batch:
                if not future.done():
                    future.set_exception(error)
            return
        tell(trace, calls)
        for (_, future, *_), value in zip(batch, values, strict=True):
            if not future.done():
                future.set_result(value)


def tell(trace: tracing.Trace | None, calls: list[Here]) -> None:
    """Each request has the spans of the batch."""
    for here in calls:
        if trace and here and here[0].is_followed:
            here[0].adopt(trace.spans, here[1])


def bind(function: Callable[..., Any], bound: inspect.BoundArguments) -> Callable[[], Any]:
    return functools.partial(function, *bound.args, **bound.kwargs)
