"""Answers in OpenAI's shapes: of completions and of chats, whole or in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rekindle.inference.engine import Tokenizer
from rekindle.inference.fields import Asked
from rekindle.inference.sampling import Chosen
from rekindle.inference.scheduler import Piece


@dataclass
class Shape:
    identity: str
    created: int
    model: str
    tokenizer: Tokenizer
    asked: Asked
    # Of the text so far.
    length: int = 0

    prefix: ClassVar[str]
    kinds: ClassVar[tuple[str, str]]

    def document(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {"id": self.identity, "object": kind, "created": self.created, "model": self.model, "choices": choices, **more}

    def usage(self, count: int) -> dict[str, int]:
        prompt = len(self.asked.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        choice = {"index": 0, **self.said(text), "logprobs": self.logprobs(pieces), "finish_reason": pieces[-1].end}
        return self.document(self.kinds[0], [choice], usage=self.usage(len(pieces)))

    def chunk(self, piece: Piece) -> dict[str, Any]:
        choice = {"index": 0, **self.added(piece.text), "logprobs": self.logprobs([piece]), "finish_reason": piece.end}
        return self.document(self.kinds[1], [choice], **self.unknown())

    def opening(self) -> list[dict[str, Any]]:
        return []

    def closing(self, count: int) -> list[dict[str, Any]]:
        return [self.document(self.kinds[1], [], usage=self.usage(count))] if self.asked.has_usage else []

    def unknown(self) -> dict[str, Any]:
        """The usage, until it is known."""
        return {"usage": None} if self.asked.has_usage else {}

    def logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if self.asked.sampling.logprobs is None:
            return None
        return self.of_tokens([(piece.text, piece.chosen) for piece in pieces if piece.chosen is not None])

    def name(self, token: int) -> str:
        return self.tokenizer.decode([token])

    def said(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def added(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def of_tokens(self, rows: list[tuple[str, Chosen]]) -> dict[str, Any]:
        raise NotImplementedError


class Completion(Shape):
    prefix, kinds = "cmpl", ("text_completion", "text_completion")

    def said(self, text: str) -> dict[str, Any]:
        return {"text": text}

    added = said

    def of_tokens(self, rows: list[tuple[str, Chosen]]) -> dict[str, Any]:
        offsets = []
        for text, _ in rows:
            offsets.append(self.length)
            self.length += len(text)
        return {
            "tokens": [self.name(chosen.token) for _, chosen in rows],
            "token_logprobs": [chosen.logprob for _, chosen in rows],
            "top_logprobs": [{self.name(token): logprob for token, logprob in chosen.most_likely} for _, chosen in rows],
            "text_offset": offsets,
        }


class Chat(Shape):
    prefix, kinds = "chatcmpl", ("chat.completion", "chat.completion.chunk")

    def said(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def added(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def opening(self) -> list[dict[str, Any]]:
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return [self.document(self.kinds[1], [first], **self.unknown())]

    def of_tokens(self, rows: list[tuple[str, Chosen]]) -> dict[str, Any]:
        return {"content": [self.token(chosen.token, chosen.logprob) | self.most_likely(chosen) for _, chosen in rows]}

    def most_likely(self, chosen: Chosen) -> dict[str, Any]:
        return {"top_logprobs": [self.token(token, logprob) for token, logprob in chosen.most_likely]}

    def token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.name(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
