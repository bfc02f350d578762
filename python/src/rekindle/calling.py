"""`rekindle call NAME [METHOD] [JSON...]`: one call of what is deployed, and its result as JSON."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from rekindle import arrays
from rekindle.address import Service
from rekindle.client import ABOUT, KIND, RESULT, Client
from rekindle.codec import decode
from rekindle.connections import Lost, NotSent
from rekindle.errors import DeclarationError, Error, RemoteError, SerializationError, UnavailableError
from rekindle.function import Function
from rekindle.raised import NOTE

# An argument that is read from standard input.
INPUT = "-"
# The most elements of an array that are printed.
MOST = 1 << 16


@dataclass
class Named(Service):
    """A service or a workflow by all of its name, which an app may have or not."""

    @classmethod
    def of(cls, given: argparse.Namespace) -> Named:
        app, _, own = given.name.rpartition("-")
        return cls(app, own, given.url, given.token, given.tenant, given.ca)

    @property
    def full_name(self) -> str:
        return f"{self.app}-{self.name}" if self.app else self.name


def main(words: list[str]) -> int:
    """Ends as every command of Rekindle's does."""
    given = arguments(words)
    try:
        result = call(given)
        text = written({"result": result} if given.json else result)
    except KeyboardInterrupt:
        return leave(130)
    except BaseException as error:
        return leave(failed(error, given.name, has_json=given.json))
    print(text, flush=True)
    return leave(0)


def arguments(words: list[str]) -> argparse.Namespace:
    """As `rekindle` passes them on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tenant")
    parser.add_argument("--token")
    parser.add_argument("--url")
    parser.add_argument("--ca")
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("name")
    parser.add_argument("words", nargs="*")
    return parser.parse_args(words)


def leave(code: int) -> int:
    """A thread may wait for an answer that nobody wants any more; its connection ends with this program."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def written(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise SerializationError(
            "the result has a number that is infinite or none, which JSON has not; the call was carried out: call it from Python"
        ) from error


def failed(error: BaseException, name: str, *, has_json: bool) -> int:
    """What the function raised has its traceback before the sentence."""
    trace = "".join(f"{note.removeprefix(NOTE)}\n" for note in getattr(error, "__notes__", ()) if note.startswith(NOTE))
    steps = "".join(f" {note}" for note in getattr(error, "__notes__", ()) if not note.startswith(NOTE))
    if isinstance(error, Error) and not trace:
        said = str(error)
    else:
        # A type that is not known here is named in the text.
        kind = "" if isinstance(error, RemoteError) else f"{type(error).__name__}: "
        said = f"{name} raised {kind}{error}{steps}"
    sentence = "; ".join(line.strip() for line in said.splitlines() if line.strip())
    print(f"{trace}rekindle: {sentence}", file=sys.stderr)
    if has_json:
        print(json.dumps({"error": sentence} | ({"traceback": trace} if trace else {})), flush=True)
    return 1


def call(given: argparse.Namespace) -> Any:
    """The result as JSON has it."""
    service = Named.of(given)
    client = Client(service)
    method, words = chosen(methods(client), given.words, service.full_name)
    values = [value_of(word) for word in words]
    under_way = Function[..., Any](client, method).spawn(*values)
    try:
        result = under_way.get(given.timeout)
    except TimeoutError:
        if under_way.done():
            raise
        raise UnavailableError(
            f"{service.full_name}.{method} gave no result within {given.timeout:g} s, and is not waited for any longer; give a longer --timeout"
        ) from None
    return shown(result, "the result")


def methods(client: Client) -> list[str]:
    try:
        answer = client.connections.request("GET", ABOUT)
    except (NotSent, Lost) as error:
        raise UnavailableError(f"{client.service.full_name} cannot be reached: {error}") from error
    if answer.headers.get(KIND) != RESULT:
        said = answer.body[:1000].decode(errors="replace").strip()
        raise DeclarationError(f"{client.service.full_name} says of its methods nothing but {answer.status}: {said}")
    found: list[str] = decode(answer.body)["methods"]
    return found


def chosen(methods: list[str], words: list[str], name: str) -> tuple[str, list[str]]:
    """The method, and what is left for its arguments: where the first word is no JSON it is a method's name."""
    if words and words[0] != INPUT and (words[0] in methods or not is_json(words[0])):
        if words[0] not in methods:
            raise DeclarationError(
                f"{words[0]!r} is neither JSON nor a method of {name}, which has {listed(methods)}; "
                f"a text as an argument is {json.dumps(words[0], ensure_ascii=False)!r}"
            )
        return words[0], words[1:]
    if len(methods) != 1:
        raise DeclarationError(f"{name} has the methods {listed(methods)}; say before the arguments which is called")
    return methods[0], words


def listed(methods: list[str]) -> str:
    return ", ".join(methods) or "none"


def is_json(word: str) -> bool:
    try:
        json.loads(word)
    except ValueError:
        return False
    return True


def value_of(word: str) -> Any:
    text, where = (sys.stdin.read(), "standard input") if word == INPUT else (word, repr(word))
    try:
        return json.loads(text)
    except ValueError as error:
        raise DeclarationError(f"{where} is no argument in JSON ({error}); a text is {json.dumps(text[:40], ensure_ascii=False)!r}") from None


def shown(value: Any, where: str) -> Any:
    """The value as JSON has it; sets are lists in their elements' order, dates and times texts."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {key_of(key, where): shown(one, f"{where}[{key!r}]") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [shown(one, f"{where}[{place}]") for place, one in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((shown(one, where) for one in value), key=lambda one: json.dumps(one))
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    array = arrays.as_array(value)
    if array is None or array.dtype.kind not in "biufUM":
        raise SerializationError(f"{where} is of type {type(value).__name__}, which JSON has not; the call was carried out: call it from Python")
    if array.size > MOST:
        raise SerializationError(
            f"{where} is an array of {array.size} elements, of which {MOST} are printed; the call was carried out: call it from Python"
        )
    if array.dtype.kind == "M":
        array = array.astype(str)
    return array.tolist()


def key_of(key: Any, where: str) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool | int | float) or key is None:
        return json.dumps(key)
    raise SerializationError(f"{where} has a key of type {type(key).__name__}, which JSON has not; the call was carried out: call it from Python")
