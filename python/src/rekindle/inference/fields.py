"""What a request of OpenAI's protocol says, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rekindle.inference.engine import Tokenizer
from rekindle.inference.http import Refused
from rekindle.inference.sampling import Sampling

# What would change the answer, and cannot be: only these values are taken.
ONLY: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
MOST_STOPS, MOST_COMPLETION_LOGPROBS, MOST_CHAT_LOGPROBS = 4, 5, 20
TOKENS = 16


@dataclass(frozen=True)
class Asked:
    prompt: list[int]
    # How many tokens at most; none: as many as there is room for.
    most: int | None
    sampling: Sampling
    stops: list[str]
    is_stream: bool
    has_usage: bool


def completion(document: dict[str, Any], tokenizer: Tokenizer) -> Asked:
    logprobs = whole(document, "logprobs", None, 0, MOST_COMPLETION_LOGPROBS)
    return asked(document, prompt(document.get("prompt"), tokenizer), whole(document, "max_tokens", TOKENS, 1), logprobs)


def chat(document: dict[str, Any], tokenizer: Tokenizer) -> Asked:
    usual = whole(document, "max_tokens", None, 1)
    most = whole(document, "max_completion_tokens", usual, 1)
    wants = truth(document, "logprobs")
    count = whole(document, "top_logprobs", None, 0, MOST_CHAT_LOGPROBS)
    if count is not None and not wants:
        raise bad("top_logprobs", "top_logprobs is for answers with logprobs; say `logprobs: true` too")
    messages = [message(row) for row in listed(document.get("messages"))]
    return asked(document, tokenizer.chat(messages), most, (count or 0) if wants else None)


def asked(document: dict[str, Any], prompt: list[int], most: int | None, logprobs: int | None) -> Asked:
    for field, values in ONLY.items():
        given = document.get(field)
        if given is not None and given not in values:
            raise bad(field, f"{field} is {given!r}, which is not supported; leave it out")
    if not prompt:
        raise bad("prompt", "the prompt is empty; give one token or more")
    options = document.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad("stream_options", f"stream_options is {options!r}; give an object")
    temperature = number(document, "temperature", 1.0, 2.0)
    sampling = Sampling(temperature, number(document, "top_p", 1.0, 1.0), seed(document), logprobs)
    return Asked(prompt, most, sampling, stops(document), truth(document, "stream"), truth(options, "include_usage"))


def bad(field: str, message: str) -> Refused:
    return Refused(400, message, field)


def truth(document: dict[str, Any], field: str) -> bool:
    value = document.get(field)
    if not isinstance(value, bool | None):
        raise bad(field, f"{field} is {value!r}; give true or false")
    return bool(value)


def number(document: dict[str, Any], field: str, usual: float, most: float) -> float:
    value = document.get(field)
    if value is None:
        return usual
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise bad(field, f"{field} is {value!r}; give a number from 0 to {most:g}")
    return float(value)


def whole(document: dict[str, Any], field: str, usual: int | None, least: int, most: int | None = None) -> int | None:
    value = document.get(field)
    if value is None:
        return usual
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        limits = f"from {least} to {most}" if most is not None else f"of {least} or more"
        raise bad(field, f"{field} is {value!r}; give a whole number {limits}")
    return value


def seed(document: dict[str, Any]) -> int | None:
    value = document.get("seed")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise bad("seed", f"seed is {value!r}; give a whole number")
    return value % (1 << 64)


def stops(document: dict[str, Any]) -> list[str]:
    value = document.get("stop")
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) > MOST_STOPS or not all(isinstance(one, str) and one for one in found):
        raise bad("stop", f"stop is {value!r}; give a text, or a list of up to {MOST_STOPS}")
    return found


def prompt(value: Any, tokenizer: Tokenizer) -> list[int]:
    """A text, or tokens; or a list of one such."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        (value,) = value
    if isinstance(value, str):
        return tokenizer.encode(value)
    if isinstance(value, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in value):
        if any(not 0 <= token < tokenizer.size for token in value):
            raise bad("prompt", f"the prompt has a token that is not from 0 to {tokenizer.size - 1}")
        return value
    raise bad("prompt", "the prompt is neither a text nor a list of tokens; give one of them, and one alone")


def listed(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise bad("messages", "messages is no list of messages; give one or more")
    return value


def message(row: Any) -> dict[str, str]:
    if not isinstance(row, dict) or not isinstance(row.get("role"), str):
        raise bad("messages", f"{row!r} is no message; give an object with role and content")
    content = row.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise bad("messages", f"the content of a message of the {row['role']!r} is no text; give text")
    return {"role": row["role"], "content": content}
