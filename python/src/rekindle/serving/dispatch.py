"""What is answered to whom, whatever server has the connection."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rekindle import tracing
from rekindle.arrays import may_be_elsewhere
from rekindle.client import ABOUT, CALL, KIND, LATER, LEFT, MESSAGE, MISUNDERSTOOD, RAISED, READY, RESULT, TIMED_OUT, UNKNOWN
from rekindle.codec import CONTENT_TYPE, FIRST, VERSION, decode, encode
from rekindle.connections import Pieces
from rekindle.errors import DataError, SerializationError
from rekindle.named_data import named_in
from rekindle.passing import HandingOn
from rekindle.raised import describe
from rekindle.serving.failures import Late, Raised, Unknown, Untaken
from rekindle.serving.later import PATH, LateTraces
from rekindle.serving.target import Target

TEXT = "text/plain; charset=utf-8"
STATUSES = {RESULT: 200, RAISED: 500, TIMED_OUT: 504, UNKNOWN: 404, MISUNDERSTOOD: 400, LEFT: 409, LATER: 409}
# All that is Rekindle's lies beneath; the rest is an ASGI application's.
OWN = "/-/"


Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    kind: str
    pieces: Pieces
    # Where the time went.
    spans: tuple[tuple[str, str], ...] = ()

    @property
    def status(self) -> int:
        return STATUSES[self.kind]

    @property
    def headers(self) -> list[tuple[str, str]]:
        content = CONTENT_TYPE if self.kind in (RESULT, RAISED) else TEXT
        length = sum(memoryview(piece).nbytes for piece in self.pieces)
        version = [(MESSAGE, str(VERSION))] if self.kind == LATER else []
        return [("Content-Type", content), ("Content-Length", str(length)), (KIND, self.kind), *version, *self.spans]


def say(kind: str, sentence: str) -> Reply:
    return Reply(kind, [f"{sentence}\n".encode()])


def version_in(headers: Headers) -> int:
    """That the message of a call needs."""
    said = next((value for name, value in headers if name == MESSAGE.lower()), str(FIRST))
    if not said.isdigit():
        raise SerializationError(f"{MESSAGE} is {said!r}; send the number of a version")
    return int(said)


class Dispatch:
    """`failed` is told if an instance cannot enter, and is of no use."""

    def __init__(self, target: Target, failed: Callable[[], None]) -> None:
        self.target, self.failed = target, failed
        self.later = LateTraces()

    async def answer(self, method: str, path: str, body: bytes | bytearray, headers: Headers = ()) -> Reply:
        """The headers have names in small letters."""
        trace = tracing.Trace.of(headers)
        with tracing.following(trace):
            reply = await self.attempt(method, path, body, headers)
        return replace(reply, spans=tuple(trace.told())) if trace else reply

    async def attempt(self, method: str, path: str, body: bytes | bytearray, headers: Headers) -> Reply:
        try:
            if method == "GET" and path == ABOUT:
                return Reply(RESULT, encode(self.about()))
            if method == "GET" and path == READY:
                await self.wake()
                return Reply(RESULT, encode(True))
            if method == "GET" and path.startswith(PATH) and (told := await self.later.take(path)) is not None:
                return Reply(RESULT, encode(True), tuple(told))
            if method == "POST" and path.startswith(CALL):
                needed = version_in(headers)
                if needed > VERSION:
                    name = self.target.declaration.service.full_name
                    return say(LATER, f"{name} understands messages up to version {VERSION}, and the call needs version {needed}; deploy it again")
                return await self.call(path.removeprefix(CALL), body, named_in(headers))
            return say(UNKNOWN, f"{method} {path} is nothing that a function of Rekindle's answers; call it by the package rekindle")
        except (DataError, SerializationError) as error:
            return say(MISUNDERSTOOD, str(error))
        except Raised as raised:
            return Reply(RAISED, describe(raised.error))
        except Exception as error:
            traceback.print_exc()
            return Reply(RAISED, describe(error))

    async def call(self, name: str, body: bytes | bytearray, named: Sequence[str]) -> Reply:
        on_gpu: list[Any] = []
        args, kwargs, *how = decode(body, on_gpu)
        handing_on = HandingOn.of(how[0]) if how else None
        await self.wake()
        try:
            async with self.target.with_data(named):
                value = await self.target.call(name, args, kwargs, handing_on, bool(on_gpu))
        except Late as late:
            return say(TIMED_OUT, str(late))
        except Unknown as unknown:
            return say(UNKNOWN, str(unknown))
        except Untaken as untaken:
            return say(LEFT, str(untaken))
        try:
            # An array on a GPU is read for it, and others' calls go on meanwhile.
            message = await asyncio.to_thread(encode, value) if may_be_elsewhere(value) else encode(value)
            return Reply(RESULT, message)
        except SerializationError as error:
            raise SerializationError(f"what {self.target.declaration.service.full_name}.{name} returned is lost: {error}") from error

    async def wake(self) -> None:
        try:
            await self.target.wake()
        except Raised as raised:
            print("rekindle: a method with @rekindle.enter(restored=True) failed, and this instance ends:", file=sys.stderr)
            traceback.print_exception(raised.error)
            self.failed()
            raise

    def about(self) -> dict[str, object]:
        return {"methods": list(self.target.methods), "message": VERSION, **self.target.limits.described()}
