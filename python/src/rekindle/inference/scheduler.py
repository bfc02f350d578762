"""Sequences of an engine: each step computes a token of all that there are, and who comes joins at the next step.

requests ─▶ waiting ─▶ slots ── begin: the prompt ── advance: a token of each, again and again ─▶ end
                                                         └── pieces of text ─▶ requests
"""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rekindle.inference.engine import Engine
from rekindle.inference.sampling import Chosen, Sampler, Sampling
from rekindle.inference.text import Growing, Stops
from rekindle.serving.target import Target


@dataclass(frozen=True)
class Piece:
    """A token, and the text that can be shown since; the last has why it ends, and a token only if that ends nothing."""

    text: str
    chosen: Chosen | None
    end: str | None = None


class Generation:
    """A sequence to one who waits for it."""

    def __init__(self, engine: Engine, prompt: list[int], most: int, sampling: Sampling, stops: Sequence[str]) -> None:
        self.engine, self.prompt, self.most = engine, prompt, most
        self.sampler = Sampler(sampling, engine.tokenizer.size)
        self.growing, self.stops = Growing(engine.tokenizer), Stops(stops)
        self.pieces: asyncio.Queue[Piece | BaseException] = asyncio.Queue()
        self.slot = -1
        self.last = -1
        self.count = 0
        self.is_over = False

    def take(self, chosen: Chosen) -> None:
        """The next token."""
        self.count += 1
        self.last = chosen.token
        if chosen.token in self.engine.tokenizer.ends:
            self.finish(self.growing.new(is_last=True), None, "stop")
            return
        text, is_stopped = self.stops.add(self.growing.add(chosen.token))
        if is_stopped:
            self.close(Piece(text, chosen, "stop"))
        elif self.count == self.most:
            self.finish(self.growing.new(is_last=True), chosen, "length", text)
        else:
            self.pieces.put_nowait(Piece(text, chosen))

    def finish(self, rest: str, chosen: Chosen | None, end: str, before: str = "") -> None:
        text, is_stopped = self.stops.add(rest)
        self.close(Piece(before + text + self.stops.rest(), chosen, "stop" if is_stopped else end))

    def close(self, last: Piece | BaseException) -> None:
        if not self.is_over:
            self.is_over = True
            self.pieces.put_nowait(last)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Until its end. What keeps it from that is raised."""
        while True:
            piece = await self.pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            yield piece
            if piece.end:
                return


class Scheduler:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiting: deque[Generation] = deque()
        self.active: dict[int, Generation] = {}
        self.free = list(range(engine.slots))
        # Slots whose sequences are over, and are still the engine's.
        self.left: list[int] = []
        self.wanted = asyncio.Event()
        self.working: asyncio.Task[None] | None = None

    def add(self, generation: Generation, target: Target) -> None:
        self.waiting.append(generation)
        self.wanted.set()
        if self.working is None:
            # It works for all, whatever data the first one has named.
            self.working = asyncio.get_running_loop().create_task(self.work(target), context=contextvars.Context())

    async def work(self, target: Target) -> None:
        while True:
            if not (self.waiting or self.active or self.left):
                self.wanted.clear()
                await self.wanted.wait()
            before, fresh, left = dict(self.active), self.admit(), self.left
            self.left = []
            try:
                rows = await target.run(lambda: self.step(left, fresh, before))
            except Exception as error:
                rows = [(generation, error) for generation in (*before.values(), *fresh)]
            for generation, found in rows:
                deliver(generation, found)
            for slot in [slot for slot, generation in self.active.items() if generation.is_over]:
                del self.active[slot]
                self.free.append(slot)
                self.left.append(slot)

    def admit(self) -> list[Generation]:
        """Those that have a slot from now on."""
        fresh = []
        while self.waiting and self.free:
            generation = self.waiting.popleft()
            if not generation.is_over:
                generation.slot = self.free.pop()
                self.active[generation.slot] = generation
                fresh.append(generation)
        return fresh

    def step(self, left: list[int], fresh: list[Generation], before: dict[int, Generation]) -> list[tuple[Generation, Chosen | BaseException]]:
        """In a thread: what each sequence has next. A prompt that cannot be computed is no other's failure."""
        rows: list[tuple[Generation, Chosen | BaseException]] = []
        for slot in left:
            self.engine.end(slot)
        if before:
            try:
                logits = self.engine.advance({slot: generation.last for slot, generation in before.items()})
                rows += [(generation, generation.sampler.take(logits[slot])) for slot, generation in before.items()]
            except Exception as error:
                traceback.print_exc()
                rows += [(generation, error) for generation in before.values()]
        for generation in fresh:
            try:
                rows.append((generation, generation.sampler.take(self.engine.begin(generation.slot, generation.prompt))))
            except Exception as error:
                traceback.print_exc()
                rows.append((generation, error))
        return rows


def deliver(generation: Generation, found: Chosen | BaseException) -> None:
    """Whatever a tokenizer makes of it is that sequence's affair."""
    if generation.is_over:
        return
    if isinstance(found, BaseException):
        generation.close(found)
        return
    try:
        generation.take(found)
    except Exception as error:
        traceback.print_exc()
        generation.close(error)
