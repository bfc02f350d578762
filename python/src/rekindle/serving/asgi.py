"""An ASGI application, served by uvicorn; what is Rekindle's own is answered before it is asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rekindle import tracing
from rekindle.errors import DeclarationError
from rekindle.named_data import named_in
from rekindle.serving.dispatch import OWN, Dispatch
from rekindle.serving.later import LateTrace, LateTraces

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
# Where an application finds what carries out calls, in its scope.
TARGET = "rekindle.target"


def headers_of(scope: Message) -> list[tuple[str, str]]:
    """Their names in small letters."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]


class Telling:
    """Sends an application's answer with where the time went until then, which its head says, and counts what goes and comes.

    The head of an answer whose length is known waits for the first piece of its body, which comes with it. What has no such length may
    be a stream, whose head its client waits for. Of that, and of a WebSocket, the head says where the rest is told once it is over.
    """

    def __init__(self, trace: tracing.Trace, later: LateTraces, receive: Receive, send: Send) -> None:
        self.trace, self.later, self.receiver, self.sender = trace, later, receive, send
        self.begin, self.here = tracing.now(), tracing.HERE.get()
        # The application's own.
        self.span: tracing.Span | None = None
        self.head: Message | None = None
        self.late: LateTrace | None = None

    async def receive(self) -> Message:
        message = await self.receiver()
        if message["type"] == "websocket.receive" and self.span:
            self.span.counts["received"] = self.span.counts.get("received", 0) + 1
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self.head = message
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                await self.tell(is_stream=True)
            return
        if kind == "websocket.accept":
            self.head = message
            await self.tell(is_stream=True)
            return
        if self.head:
            await self.tell(is_stream=message.get("more_body", False))
        if self.late and (kind == "websocket.send" or message.get("body")):
            self.count_piece()
        await self.sender(message)

    def count_piece(self) -> None:
        if self.span:
            counts = self.span.counts
            counts["pieces"] = counts.get("pieces", 0) + 1
            counts.setdefault("first", tracing.now() - self.begin)

    async def tell(self, *, is_stream: bool) -> None:
        assert self.head is not None
        head, self.head = self.head, None
        self.note(is_stream=is_stream)
        told = self.trace.told()
        if is_stream:
            self.late, header = self.later.promise(self.trace)
            told.append(header)
        spans = [(name.lower().encode(), value.encode()) for name, value in told]
        await self.sender({**head, "headers": [*head.get("headers", ()), *spans]})

    def note(self, *, is_stream: bool = False) -> None:
        """What is known by now of where the time went."""
        # Whoever sends may be another task, which is in no span.
        token = tracing.HERE.set(self.here)
        try:
            if is_stream:
                tracing.note("first byte", self.begin)
            tracing.note_waits(self.begin)
        finally:
            tracing.HERE.reset(token)

    def end(self) -> None:
        """The application is through."""
        if self.late:
            self.note()
            self.late.is_over.set()


def wrap(application: Application, dispatch: Dispatch) -> Application:
    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(OWN):
            await answer(scope, receive, send)
            return
        if scope["type"] == "lifespan":
            await application({**scope, TARGET: dispatch.target}, receive, send)
            return
        trace = tracing.Trace.of(headers_of(scope))
        with tracing.following(trace):
            await dispatch.wake()
            if trace and trace.is_followed:
                await run_told(trace, scope, receive, send)
            else:
                await run(scope, receive, send)

    async def run(scope: Message, receive: Receive, send: Send) -> None:
        async with dispatch.target.with_data(named_in(headers_of(scope))):
            await application({**scope, TARGET: dispatch.target}, receive, send)

    async def run_told(trace: tracing.Trace, scope: Message, receive: Receive, send: Send) -> None:
        telling: Telling | None = None
        try:
            with tracing.span("application", is_answer=True) as made:
                telling = Telling(trace, dispatch.later, receive, send)
                telling.span = made
                await run(scope, telling.receive, telling.send)
        finally:
            if telling:
                telling.end()

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        reply = await dispatch.answer(scope["method"], scope["path"], body, headers_of(scope))
        headers = [(name.lower().encode(), value.encode()) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"".join(reply.pieces)})

    return wrapped


async def listen(application: Application, dispatch: Dispatch, host: str, port: int) -> asyncio.Task[None]:
    """Serves it until the task is done, which it is once a signal has come."""
    try:
        import uvicorn
    except ImportError:
        raise DeclarationError(
            "an ASGI application needs uvicorn, which is not installed; install it with `python3 -m pip install uvicorn`"
        ) from None
    # Of TCP by its number: else asyncio does not turn off that small pieces of an answer wait for each other (TCP_NODELAY).
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    config = uvicorn.Config(wrap(application, dispatch), log_level="warning", access_log=False, proxy_headers=True)
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve([listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if serving.done() and not server.started:
        await serving
        raise DeclarationError("the ASGI application's own start failed; its log says why")
    return serving
