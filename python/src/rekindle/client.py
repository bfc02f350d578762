"""A call: sent, answered, and made again as its function's declaration says."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import CONFLICT
from typing import Any
from urllib.parse import unquote

from rekindle import tracing
from rekindle.address import Service
from rekindle.both import begin
from rekindle.codec import CONTENT_TYPE, FIRST, decode, encode
from rekindle.connections import Answer, Connections, Lost, NotSent, Pieces
from rekindle.errors import (
    CallError,
    DeclarationError,
    Error,
    FunctionTimeoutError,
    InstanceLostError,
    NotFoundError,
    QueueFullError,
    RefusedError,
    SerializationError,
    TokenError,
    UnavailableError,
)
from rekindle.exchange import Ref
from rekindle.named_data import HEADER, REFUSALS, header_of
from rekindle.passing import HandingOn, Passing
from rekindle.raised import rebuild
from rekindle.retries import NONE, Retries

# What an instance says of its answer, so that it is not taken for a gateway's.
KIND = "X-Rekindle"
# Which step of a workflow has failed, percent-encoded.
STEP = "X-Rekindle-Step"
RESULT, RAISED, TIMED_OUT, UNKNOWN, MISUNDERSTOOD = "result", "raised", "timeout", "unknown", "misunderstood"
# It takes no references to arrays of the caller's, and has done nothing.
LEFT = "untaken"
# It understands no messages of the version that the call needs, and has done nothing; the gateway says so without a kind.
LATER = "later"
# Of calls: the version that the message needs, if that is not the first; of answers to what needs a later one: the latest that is understood.
MESSAGE = "Rekindle-Message"
# Of calls: arrays that they have by reference, and how many are named.
ARRAYS, MOST_NAMED = "Rekindle-Arrays", 32
# Seconds until what was not taken is tried again: references, or messages of a later version.
AGAIN = 60.0

CALL, ABOUT, READY = "/-/call/", "/-/about", "/-/ready"


class Rebuilt(Exception):
    """The user's exception, which may be of any type."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Untaken(Exception):
    """The call was not begun, for its arrays are not taken by reference."""


class Later(Exception):
    """The call was not begun, for its message needs a later version than the function understands."""


@dataclass(frozen=True)
class Prepared:
    """A call that is carried out later, or let go: one of both is to be done."""

    carry_out: Callable[[], Any]
    let_go: Callable[[], None]

    def begin(self) -> Future[Any]:
        """In a thread."""
        try:
            future = begin(self.carry_out)
        except BaseException:
            self.let_go()
            raise
        # One that is called off before it has a thread is not carried out.
        future.add_done_callback(lambda ended: self.let_go() if ended.cancelled() else None)
        return future


class Client:
    """Calls to one service."""

    def __init__(self, service: Service, retries: Retries | None = None) -> None:
        self.service, self.retries = service, retries
        self.connections = Connections(service)
        # What its calls name in place of declared data.
        self.data: dict[str, str] = {}
        # Until then arrays go by their bytes.
        self.by_bytes = 0.0
        # Until then messages are of the first version.
        self.first = 0.0

    def with_data(self, urls: Mapping[str, str]) -> Client:
        """One that names these objects with each call, by the same connections."""
        client = copy.copy(self)
        client.data = header_of(urls)
        return client

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], patient: bool = False, handing_on: HandingOn | None = None) -> Any:
        """The result. One who is patient waits for a place among those who wait."""
        return self.carry_out(method, self.passing(args, kwargs, handing_on), patient)

    def prepare(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], patient: bool = False) -> Prepared:
        """A call with what the arguments are now. Raises for what cannot be sent."""
        passing = self.passing(args, kwargs, None)
        try:
            passing.settle()
            encode(passing.given())
        except BaseException:
            passing.end()
            raise
        return Prepared(functools.partial(self.carry_out, method, passing, patient), passing.end)

    def passing(self, args: tuple[Any, ...], kwargs: dict[str, Any], handing_on: HandingOn | None) -> Passing:
        passing = Passing(args, kwargs, handing_on, by_bytes=time.monotonic() < self.by_bytes)
        if time.monotonic() < self.first:
            passing.be_first()
        return passing

    def carry_out(self, method: str, passing: Passing, patient: bool) -> Any:
        try:
            return passing.result(self.persist(method, passing, patient))
        finally:
            passing.end()

    def persist(self, method: str, passing: Passing, patient: bool) -> Any:
        """What the first try comes to that is not to be made again."""
        body = encode(passing.given())
        failures = 0
        while True:
            try:
                return self.once(method, body, passing.version, passing.named())
            except Untaken as untaken:
                if passing.by_bytes:
                    raise CallError(f"{self.service.full_name}.{method} was not called: {untaken}") from untaken
                self.by_bytes = time.monotonic() + AGAIN
                passing.refuse()
                body = encode(passing.given())
                continue
            except Later as later:
                if not passing.be_first():
                    raise CallError(f"{self.service.full_name}.{method} was not called: {later}") from later
                self.first = time.monotonic() + AGAIN
                body = encode(passing.given())
                continue
            except Exception as error:
                failures += 1
                delay = self.delay(error, failures, patient)
                if delay is None:
                    if isinstance(error, Rebuilt):
                        raise error.error from None
                    raise
                if may_be_done(error) and passing.tried():
                    body = encode(passing.given())
            time.sleep(delay)

    def delay(self, error: Exception, failures: int, patient: bool) -> float | None:
        """Seconds until the call is made again; none: it is not."""
        if patient and isinstance(error, QueueFullError):
            return error.retry_after
        if not isinstance(error, Rebuilt | CallError):
            return None
        if failures > self.declared().max_retries:
            return None
        least = error.retry_after if isinstance(error, RefusedError) else 0.0
        return max(least, self.declared().delay(failures))

    def declared(self) -> Retries:
        """How often a call may be made again, which an instance knows if this program does not."""
        if self.retries is None:
            try:
                answer = self.connections.request("GET", ABOUT)
                if answer.headers.get(KIND) != RESULT:
                    return NONE
                self.retries = Retries(**decode(answer.body)["retries"])
            except (Error, NotSent, Lost):
                return NONE
        return self.retries

    def once(self, method: str, body: Pieces, version: int, named: Sequence[Ref] = ()) -> Any:
        name = f"{self.service.full_name}.{method}"
        needs = {MESSAGE: str(version)} if version > FIRST else {}
        if named:
            # A gateway that has instances on several GPUs chooses one where they lie.
            needs[ARRAYS] = ",".join(ref.id for ref in named[:MOST_NAMED])
        try:
            answer = self.connections.request("POST", CALL + method, body, {"Content-Type": CONTENT_TYPE, **needs, **self.data, **tracing.headers()})
        except NotSent as error:
            raise UnavailableError(f"{name} was not called: {error}") from error
        except Lost as error:
            raise CallError(f"the connection was lost while {name} was called ({error}); whether it was carried out is not known") from error
        return result(name, answer)


def may_be_done(error: Exception) -> bool:
    """Whether all of a call may have been carried out that has no answer."""
    return isinstance(error, CallError) and not isinstance(error, RefusedError | FunctionTimeoutError)


def result(name: str, answer: Answer) -> Any:
    """The value of an answer, or its exception."""
    kind = answer.headers.get(KIND)
    if kind == RESULT:
        return decode(answer.body)
    if kind == RAISED:
        error = rebuild(answer.body)
        if step := answer.headers.get(STEP):
            error.add_note(step_note(unquote(step)))
        raise Rebuilt(error)
    said = answer.body[:1000].decode(errors="replace").strip()
    if kind == LEFT:
        raise Untaken(said)
    if kind == LATER or (kind is None and answer.status == CONFLICT and MESSAGE in answer.headers):
        raise Later(said)
    if kind == TIMED_OUT:
        raise FunctionTimeoutError(said)
    if kind == UNKNOWN:
        raise NotFoundError(said)
    if kind == MISUNDERSTOOD:
        raise SerializationError(said)
    if refusal := REFUSALS.get(answer.headers.get(HEADER, "")):
        raise refusal(f"{name}: {said}")
    if answer.status in (401, 403):
        raise TokenError(f"{name}: {said}; give a token of its tenant, as REKINDLE_TOKEN or `token`")
    if answer.status == 429:
        raise QueueFullError(f"{name}: {said}", again(answer))
    if answer.status == 503:
        raise UnavailableError(f"{name}: {said}", again(answer))
    if answer.status == 502:
        raise InstanceLostError(f"{name}: {said}")
    raise DeclarationError(f"{name} is answered {answer.status}, and not by a function of Rekindle's: {said[:200]}")


def step_note(name: str) -> str:
    return f"in the step {name!r} of a workflow"


def again(answer: Answer) -> float:
    after = answer.headers.get("Retry-After", "")
    return float(after) if after.isdigit() else 1.0
