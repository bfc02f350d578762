"""What a language model is to the endpoint: logits for sequences that are computed together, and a tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy

    # Of one token, a number for each of the vocabulary.
    Logits = numpy.ndarray[Any, Any]


class Tokenizer(Protocol):
    @property
    def size(self) -> int:
        """How many tokens it knows; logits behind them are not looked at."""

    @property
    def ends(self) -> Collection[int]:
        """Tokens that end a text."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt of a conversation, whose messages have `role` and `content`."""


class Engine(Protocol):
    """Sequences have slots, which are numbered from 0. Only one thread at a time is in these methods."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context(self) -> int:
        """How many tokens a sequence may have, its prompt among them."""

    @property
    def slots(self) -> int:
        """How many sequences there are at most."""

    def begin(self, slot: int, tokens: Sequence[int]) -> Logits:
        """A sequence with this prompt, which has one token or more; the logits of what follows it."""

    def advance(self, tokens: Mapping[int, int]) -> Mapping[int, Logits]:
        """One token more for each sequence that there is, by slots; the logits of what follows."""

    def end(self, slot: int) -> None:
        """Forgets the sequence, if there is one."""


class ByteTokenizer:
    """Each byte is a token; one more ends a text. For models that have no tokenizer of their own."""

    size = 257
    ends = (256,)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode(plain_chat(messages))


def plain_chat(messages: Sequence[Mapping[str, str]]) -> str:
    """For models whose tokenizer has no template."""
    return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: "
