"""Where the time of a request goes in its instance: spans of the request's trace, which the gateway is told with the answer.

    traceparent ─▶ Trace ─ span("queue"), span("method") … ─▶ Rekindle-Spans: queue;begin;took;id;, method;…;error=WHY
                     └─ calls of other functions: a traceparent that names the span they are made in

Where no trace is followed a span costs the look at a variable.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import quote

from rekindle import driver

# What a request says of its trace, and what an answer says of where the time went.
PARENT, STATE, SPANS = "traceparent", "tracestate", "Rekindle-Spans"
# How many spans of a request are told, and how many characters of why one failed.
MOST = 60
MOST_OF_ERROR = 120

KNOWN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
SAMPLED = 1
# What work on the GPU has waited for, as the library numbers it.
WAITED = ("wait for data", "wait for image", "wait for checkpoint")
# The last times, which several requests may be told of.
waits: deque[tuple[int, int, int]] = deque(maxlen=driver.WAITS)


@dataclass
class Span:
    """Times are in microseconds, the first since 1970. `within`: the span that it is a part of; none: the request's own."""

    name: str
    begin: int
    # None for as long as it goes on.
    took: int | None
    id: str
    within: str
    # It ends with the answer, which whoever is told of it knows better.
    is_answer: bool = False
    # Why it failed.
    error: str = ""
    # What came of it: `pieces` that were sent and messages `received`, and microseconds to the `first` piece.
    counts: dict[str, int] = field(default_factory=dict)

    def fail(self, error: BaseException) -> None:
        """One that is called off has not failed."""
        if not isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.error = f"{type(error).__name__}: {error}"[:MOST_OF_ERROR]

    def told(self) -> str:
        """As the header has it."""
        details = [f"{name}={count}" for name, count in self.counts.items()]
        if self.error:
            details.append(f"error={quote(self.error, safe='')}")
        return ";".join([self.name, str(self.begin), self.so_far(), self.id, self.within, *details])

    def so_far(self) -> str:
        if self.took is None:
            return "" if self.is_answer else str(now() - self.begin)
        return str(self.took)


class Trace:
    """Of one request."""

    def __init__(self, id: str, parent: str, flags: str, state: str) -> None:
        self.id, self.parent, self.flags, self.state = id, parent, flags, state
        self.spans: list[Span] = []

    @classmethod
    def of(cls, headers: Iterable[tuple[str, str]]) -> Trace | None:
        """The trace that a request is in, by its headers."""
        found = {name: value for name, value in headers if name in (PARENT, STATE)}
        known = KNOWN.fullmatch(found.get(PARENT, ""))
        return cls(known[1], known[2], known[3], found.get(STATE, "")) if known else None

    @property
    def is_followed(self) -> bool:
        return bool(int(self.flags, 16) & SAMPLED)

    def adopt(self, spans: list[Span], within: str) -> None:
        """What was done for several requests at once is a part of this one's, too."""
        ids = {"": within}
        for one in spans:
            ids[one.id] = secrets.token_hex(8)
            self.spans.append(Span(one.name, one.begin, one.took, ids[one.id], ids[one.within], error=one.error))

    def note(self, name: str, begin: int, took: int, within: str) -> None:
        self.spans.append(Span(name, begin, took, secrets.token_hex(8), within))

    def told(self) -> list[tuple[str, str]]:
        """The header of the answer. A span stands behind the one that it is a part of."""
        spans = [one.told() for one in self.spans[:MOST]]
        return [(SPANS, ", ".join(spans))] if spans else []


# The trace that this is done in, and the span.
HERE: ContextVar[tuple[Trace, str] | None] = ContextVar("rekindle_trace", default=None)


def now() -> int:
    return time.time_ns() // 1000


@contextlib.contextmanager
def span(name: str, *, is_answer: bool = False) -> Iterator[Span | None]:
    """What is done in it is a span of the request that it is done for, if that is followed. `is_answer`: it ends with the answer.
    One in which something is raised says what."""
    here = HERE.get()
    if here is None or not here[0].is_followed:
        yield None
        return
    trace, within = here
    made = Span(name, now(), None, secrets.token_hex(8), within, is_answer)
    trace.spans.append(made)
    token = HERE.set((trace, made.id))
    try:
        yield made
    except BaseException as error:
        made.fail(error)
        raise
    finally:
        HERE.reset(token)
        made.took = now() - made.begin


def note(name: str, begin: int) -> None:
    """What has begun then and is over now was a span of the request."""
    here = HERE.get()
    if here and here[0].is_followed:
        here[0].note(name, begin, now() - begin, here[1])


@contextlib.contextmanager
def method() -> Iterator[None]:
    """What is done in it is the user's method, and a part of that is what its work on the GPU has waited for."""
    begin = now()
    with span("method"):
        try:
            yield
        finally:
            note_waits(begin)


def note_waits(begin: int) -> None:
    """What work on the GPU has waited for since then is a part of this span."""
    here = HERE.get()
    if here and here[0].is_followed and driver.is_used():
        # There may be no context, and so no work.
        with contextlib.suppress(driver.DriverError):
            if driver.enter_active_context():
                waits.extend(driver.waits())
        # What a method within it has told is told.
        told = {(one.name, one.begin) for one in here[0].spans}
        for what, since, took in list(waits):
            if since + took >= begin and (WAITED[what], since) not in told:
                here[0].note(WAITED[what], since, took, here[1])


@contextlib.contextmanager
def following(trace: Trace | None) -> Iterator[None]:
    """What is done in it is done for a request of this trace."""
    token = HERE.set((trace, "") if trace else None)
    try:
        yield
    finally:
        HERE.reset(token)


def together(calls: list[tuple[Trace, str] | None]) -> Trace | None:
    """A trace for what is done for several requests at once: of the first that is followed. They adopt its spans."""
    for here in calls:
        if here and here[0].is_followed:
            trace, within = here
            return Trace(trace.id, within or trace.parent, trace.flags, trace.state)
    return None


def headers() -> dict[str, str]:
    """What a call of another function says of the trace that it is made in."""
    here = HERE.get()
    if here is None:
        return {}
    trace, within = here
    parent = {PARENT: f"00-{trace.id}-{within or trace.parent}-{trace.flags}"}
    return parent | ({STATE: trace.state} if trace.state else {})
