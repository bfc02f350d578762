"""A function or class with its options: all that the program which serves it needs to know."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rekindle import sharing
from rekindle.address import Service
from rekindle.data import Data
from rekindle.errors import DeclarationError
from rekindle.limits import Limits
from rekindle.marks import Mark, mark_of
from rekindle.named_data import Slot


@dataclass(frozen=True)
class Declaration:
    service: Service
    user: Any
    limits: Limits
    # What instances have as attributes.
    data: Mapping[str, Data] = field(default_factory=dict)

    @classmethod
    def of(cls, app: str, name: str, user: Any, options: dict[str, Any], data: Mapping[str, Data]) -> Declaration:
        declaration = cls(Service(app, name), user, Limits.declared(options, name, sharing.of_app(app)), dict(data))
        declaration.give_data()
        batched = [mark.batched.max_batch_size for _, mark in declaration.marks() if mark.batched]
        if batched and "concurrency" not in options:
            # One batch is collected while nothing else is held up.
            declaration = replace(declaration, limits=replace(declaration.limits, concurrency=max(batched)))
        if max(batched, default=0) > declaration.limits.concurrency:
            raise DeclarationError(
                f"{name}: concurrency is {declaration.limits.concurrency}, so that no batch of {max(batched)} comes together; raise it"
            )
        declaration.check()
        return declaration

    def give_data(self) -> None:
        for name, data in self.data.items():
            if not isinstance(data, Data):
                raise DeclarationError(f"{self.service.name}: the data {name!r} is {data!r}; give rekindle.Data")
            if not name.isidentifier() or hasattr(self.user, name):
                raise DeclarationError(f"{self.service.name} cannot have data as {name!r}; give it the name of no other attribute")
            if data.overrides and not name.isascii():
                raise DeclarationError(f"{self.service.name}: a call cannot name data for {name!r}; give it a name in ASCII")
            setattr(self.user, name, Slot(data))

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.user)

    def marks(self) -> Iterator[tuple[str, Mark]]:
        """Marked methods, those of base classes too, in the order in which they stand there."""
        if not self.is_class:
            yield self.service.name, mark_of(self.user) or Mark(is_method=True)
            return
        seen = set()
        for base in reversed(self.user.__mro__):
            for name in vars(base):
                mark = mark_of(inspect.getattr_static(self.user, name))
                if mark and name not in seen:
                    seen.add(name)
                    yield name, mark

    def data_options(self) -> list[str]:
        """As `rekindle serve` takes them."""
        return [word for url in sorted({data.url for data in self.data.values()}) or ["none"] for word in ("--data", url)]

    def slot_options(self) -> list[str]:
        """Which data a call can name another object for, as `rekindle serve` takes it."""
        slots = ["none"]
        for name, data in self.data.items():
            if name.isascii() and name.isidentifier():
                slots += [f"{name}={one}" for one in data.overrides] or [name]
        return [word for slot in slots for word in ("--data-slot", slot)]

    def check(self) -> None:
        asgi = [name for name, mark in self.marks() if mark.is_asgi]
        name = self.service.name
        if self.limits.mode and self.data:
            raise DeclarationError(
                f"{name}: declared data comes by Rekindle's worker, which there is not in mode {self.limits.mode}; load {', '.join(self.data)} in @enter"
            )
        if len(asgi) > 1:
            raise DeclarationError(f"{name}: {' and '.join(asgi)} are ASGI applications; a service has one")
        if self.is_class and not asgi and not any(mark.is_method for _, mark in self.marks()):
            raise DeclarationError(f"{name}: there is nothing to call; decorate a method with @rekindle.method()")
        if self.is_class and parameters(self.user):
            raise DeclarationError(
                f"{name}: its __init__ takes {', '.join(parameters(self.user))}, which nobody gives; set it up in a method with @rekindle.enter()"
            )


def parameters(user: Callable[..., Any]) -> list[str]:
    """Those that must be given."""
    every = inspect.signature(user).parameters.values()
    return [one.name for one in every if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
