"""What the decorators of methods leave on them, until the class is declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rekindle.errors import DeclarationError

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE = "__rekindle_mark__"


@dataclass(frozen=True)
class Batched:
    """Calls are collected, until there are `max_batch_size` or the first has waited for `wait_ms`."""

    max_batch_size: int
    wait_ms: float


@dataclass
class Mark:
    is_method: bool = False
    # In the program that the image is taken of; in each instance; when an instance ends.
    enters: bool = False
    enters_restored: bool = False
    exits: bool = False
    is_asgi: bool = False
    batched: Batched | None = None


def mark_of(function: object) -> Mark | None:
    found = getattr(function, ATTRIBUTE, None)
    return found if isinstance(found, Mark) else None


def marked(function: F) -> Mark:
    """Its mark, to be changed."""
    if not inspect.isfunction(function):
        raise DeclarationError(f"{function!r} is no function; decorators of methods come before those of classes, and have parentheses")
    if mark_of(function) is None:
        setattr(function, ATTRIBUTE, Mark())
    mark: Mark = getattr(function, ATTRIBUTE)
    return mark


def method() -> Callable[[F], F]:
    """A method that can be called from elsewhere."""

    def decorate(function: F) -> F:
        marked(function).is_method = True
        return function

    return decorate


def enter(*, restored: bool = False) -> Callable[[F], F]:
    """A method that runs once before the image is taken; with `restored`, in each instance before its first call."""

    def decorate(function: F) -> F:
        if restored:
            marked(function).enters_restored = True
        else:
            marked(function).enters = True
        return function

    return decorate


def exit() -> Callable[[F], F]:  # noqa: A001
    """A method that runs when an instance ends."""

    def decorate(function: F) -> F:
        marked(function).exits = True
        return function

    return decorate


def batched(*, max_batch_size: int, wait_ms: float) -> Callable[[F], F]:
    """A method that takes a list of each argument and returns a list; callers give and get one element."""
    if not isinstance(max_batch_size, int) or max_batch_size < 1 or wait_ms < 0:
        raise DeclarationError(f"batched(max_batch_size={max_batch_size!r}, wait_ms={wait_ms!r}) cannot be; give 1 or more, and 0 or more")

    def decorate(function: F) -> F:
        mark = marked(function)
        mark.is_method = True
        mark.batched = Batched(max_batch_size, wait_ms)
        return function

    return decorate


def asgi_app() -> Callable[[F], F]:
    """A function or method that returns an ASGI application, which then answers all requests of the service."""

    def decorate(function: F) -> F:
        marked(function).is_asgi = True
        return function

    return decorate
