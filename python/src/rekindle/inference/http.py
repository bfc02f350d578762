"""Requests and answers of an ASGI application, and those that are refused."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rekindle.errors import DataError
from rekindle.serving.asgi import Message, Receive, Send
from rekindle.serving.failures import Late, Raised

JSON = "application/json"
# What may be such, if the other half does not follow.
HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class Refused(Exception):
    """A request that is not answered as it was meant: an HTTP status and a sentence, for OpenAI's protocol a field and a word too."""

    def __init__(self, status: int, message: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.code = status, message, field, code


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": JSON})

    @classmethod
    def of(cls, document: Any, status: int = 200) -> Response:
        return cls(written(document), status)


class Gone(Exception):
    """Whoever asked has closed the connection."""


async def read(scope: Message, receive: Receive) -> Request:
    """The whole of it."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return Request(scope["method"], scope["path"], headers, bytes(body))


async def begin(send: Send, status: int, headers: Mapping[str, str]) -> None:
    rows = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": rows})


async def answer(send: Send, response: Response) -> None:
    await begin(send, response.status, {**response.headers, "content-length": str(len(response.body))})
    await send({"type": "http.response.body", "body": response.body})


async def live(receive: Receive, send: Send) -> None:
    """The lifespan of an application that has nothing to begin or to end."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def document_of(body: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(body, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the request is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused(400, f"the request is {type(found).__name__} in JSON; give an object")
    if HALF.search(body):
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Refused(400, "the request has half of a character (a surrogate by itself), which no text has") from None
    return found


def no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON's")


def written(document: Any) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def as_refused(error: BaseException) -> Refused:
    """What is said of a failure that is not the client's."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, Late):
        return Refused(504, str(error))
    if isinstance(error, Raised):
        error = error.error
    if isinstance(error, Refused):
        return error
    if isinstance(error, DataError):
        return Refused(503, str(error))
    with contextlib.suppress(Exception):
        return Refused(500, f"{type(error).__name__}: {error}")
    return Refused(500, type(error).__name__)
