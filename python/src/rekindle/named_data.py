"""Objects that a call names in place of declared data, and what of that is found where the call runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from rekindle.data import Data, check_url, quoted
from rekindle.errors import DataAccessError, DataError, DataNameError, DataNotFoundError

HEADER = "Rekindle-Data"
# What the gateway says in that header of an answer: why a call does not have the object that it names.
REFUSALS: dict[str, type[DataError]] = {
    "malformed": DataNameError,
    "unknown": DataNameError,
    "not-allowed": DataAccessError,
    "missing": DataNotFoundError,
}

# By what is declared.
Chosen = Mapping[Data, Data]
CHOSEN: ContextVar[Chosen] = ContextVar("rekindle_named_data", default=MappingProxyType({}))


class Slot:
    """The attribute that declared data is: what this call has named for it, else the data itself."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __get__(self, _instance: Any, _owner: type | None = None) -> Data:
        return current(self.data)


def current(data: Data) -> Data:
    return CHOSEN.get().get(data, data)


def header_of(urls: Mapping[str, str]) -> dict[str, str]:
    """What a request says of them."""
    for url in urls.values():
        check_url(url)
    return {HEADER: ", ".join(f"{name}={quoted(url)}" for name, url in urls.items())} if urls else {}


def named_in(headers: Iterable[tuple[str, str]]) -> list[str]:
    """What the headers of a request, with names in small letters, have in this one."""
    return [value for name, value in headers if name == HEADER.lower()]


def choose(declared: Mapping[str, Data], headers: Iterable[str]) -> Chosen:
    """What the headers of a request name. The gateway has refused what is not allowed; nothing else is taken here either."""
    chosen = {}
    for pair in (pair.strip() for header in headers for pair in header.split(",")):
        name, _, url = pair.partition("=")
        data = declared.get(name)
        if data is None or not url.startswith(data.overrides):
            raise DataAccessError(f"{HEADER} is {pair!r}, which is not allowed; name what the declaration of {name!r} allows by `override`")
        chosen[data] = data.replaced(url)
    return chosen


def key_of(chosen: Chosen) -> frozenset[tuple[Data, str]]:
    """The same for calls that have named the same."""
    return frozenset((data, named.url) for data, named in chosen.items())
