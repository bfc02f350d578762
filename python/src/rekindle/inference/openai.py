"""OpenAI's protocol: completions and chats of one language model, whole or as they come."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from rekindle.errors import DeclarationError
from rekindle.inference import choices, fields
from rekindle.inference.choices import Shape
from rekindle.inference.engine import Engine, Tokenizer
from rekindle.inference.fields import Asked
from rekindle.inference.http import Gone, Refused, Request, Response, answer, as_refused, begin, document_of, live, read, written
from rekindle.inference.scheduler import Generation, Piece, Scheduler
from rekindle.serving.asgi import TARGET, Message, Receive, Send
from rekindle.serving.target import Target

MODELS, COMPLETIONS, CHATS = "/v1/models", "/v1/completions", "/v1/chat/completions"
STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
DONE = b"data: [DONE]\n\n"
TYPES = {400: "invalid_request_error", 404: "invalid_request_error", 405: "invalid_request_error"}
Parse = Callable[[dict[str, Any], Tokenizer], Asked]
WAYS: dict[str, tuple[Parse, type[Shape]]] = {COMPLETIONS: (fields.completion, choices.Completion), CHATS: (fields.chat, choices.Chat)}


class LanguageModel:
    def __init__(self, engine: Engine, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise DeclarationError(f"the name of a language model is {name!r}; give a text")
        if engine.slots < 1 or engine.context < 2:
            raise DeclarationError(f"{name} has {engine.slots} slots and a context of {engine.context} tokens; give 1 or more, and 2 or more")
        self.engine, self.name = engine, name
        self.created = int(time.time())
        self.scheduler = Scheduler(engine)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close"})
        else:
            try:
                await self.respond(await read(scope, receive), scope[TARGET], receive, send)
            except Gone:
                return
            except Exception as error:
                await answer(send, refusal(error))

    async def respond(self, request: Request, target: Target, receive: Receive, send: Send) -> None:
        path = request.path.rstrip("/")
        if path in WAYS:
            if request.method != "POST":
                raise Refused(405, f"{request.method} {path} is nothing that is answered; use POST")
            return await self.generate(request, *WAYS[path], target, receive, send)
        is_read = request.method in ("GET", "HEAD")
        row = {"id": self.name, "object": "model", "created": self.created, "owned_by": "rekindle"}
        if is_read and path == MODELS:
            return await answer(send, Response.of({"object": "list", "data": [row]}))
        if is_read and path.startswith(f"{MODELS}/"):
            self.check(path.removeprefix(f"{MODELS}/"))
            return await answer(send, Response.of(row))
        raise Refused(404, f"there is no {request.method} {path}; there are {COMPLETIONS}, {CHATS} and {MODELS}")

    def check(self, name: object) -> None:
        if name != self.name:
            raise Refused(404, f"there is no model {name!r}; there is {self.name!r}", "model", "model_not_found")

    async def generate(self, request: Request, parse: Parse, kind: type[Shape], target: Target, receive: Receive, send: Send) -> None:
        document = document_of(request.body)
        self.check(document.get("model"))
        asked = parse(document, self.engine.tokenizer)
        room = self.engine.context - len(asked.prompt)
        if room < (asked.most or 1):
            sentence = f"the model has {self.engine.context} tokens, of which the prompt takes {len(asked.prompt)}"
            raise Refused(400, f"{sentence} and the answer may take {asked.most or 1}; ask for less", "max_tokens", "context_length_exceeded")
        generation = Generation(self.engine, asked.prompt, asked.most or room, asked.sampling, asked.stops)
        shape = kind(f"{kind.prefix}-{uuid.uuid4().hex}", int(time.time()), self.name, self.engine.tokenizer, asked)
        watch = asyncio.ensure_future(leave(generation, receive))
        self.scheduler.add(generation, target)
        try:
            await (stream if asked.is_stream else whole)(generation, shape, send)
        finally:
            watch.cancel()
            generation.close(Gone())


async def leave(generation: Generation, receive: Receive) -> None:
    """Whose client goes away needs no more of it."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.close(Gone())


async def whole(generation: Generation, shape: Shape, send: Send) -> None:
    pieces = [piece async for piece in generation]
    await answer(send, Response.of(shape.whole(pieces)))


async def stream(generation: Generation, shape: Shape, send: Send) -> None:
    """Server-sent events. What is wrong before the first one is an answer like any other."""
    pieces = generation.__aiter__()
    first = await anext(pieces)
    await begin(send, 200, STREAM)
    for row in shape.opening():
        await send(event(row))
    try:
        async for piece in following(first, pieces):
            await send(event(shape.chunk(piece)))
        for row in shape.closing(generation.count):
            await send(event(row))
        await send({"type": "http.response.body", "body": DONE})
    except Gone:
        return
    except Exception as error:
        await send({"type": "http.response.body", "body": b"data: " + refusal(error).body + b"\n\n"})


async def following(first: Piece, pieces: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    yield first
    async for piece in pieces:
        yield piece


def event(row: dict[str, Any]) -> Message:
    return {"type": "http.response.body", "body": b"data: " + written(row) + b"\n\n", "more_body": True}


def refusal(error: BaseException) -> Response:
    refused = as_refused(error)
    if refused.status == 500:
        traceback.print_exception(error)
    kind = TYPES.get(refused.status, "server_error")
    body = {"error": {"message": refused.message, "type": kind, "param": refused.field, "code": refused.code}}
    return Response(json.dumps(body).encode(), refused.status)
