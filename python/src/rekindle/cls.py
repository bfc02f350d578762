"""Classes as their callers see them."""

from __future__ import annotations

import functools
from typing import Any, Generic, TypeVar

from rekindle.address import Service
from rekindle.client import Client
from rekindle.declaration import Declaration
from rekindle.function import Function

T = TypeVar("T")


class Obj:
    """An object whose methods are functions. All objects of a class are the same one: each instance has one of its own."""

    def __init__(self, client: Client, declaration: Declaration | None) -> None:
        self._client, self._declaration = client, declaration

    def __getattr__(self, name: str) -> Function[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._declaration is None:
            return Function(self._client, name)
        if not any(mark.is_method for found, mark in self._declaration.marks() if found == name):
            raise AttributeError(f"{self._declaration.service.name} has no method {name!r} with @rekindle.method()")
        return Function(self._client, name, self._local(name))

    def _local(self, name: str) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._here, name)(*args, **kwargs)

        return functools.wraps(getattr(self._user, name))(run)

    @property
    def _user(self) -> Any:
        assert self._declaration is not None
        return self._declaration.user

    @functools.cached_property
    def _here(self) -> Any:
        """The user's object in this program, set up."""
        assert self._declaration is not None
        made = self._user()
        for kind in ("enters", "enters_restored"):
            for name, mark in self._declaration.marks():
                if getattr(mark, kind):
                    getattr(made, name)()
        return made


class Cls(Generic[T]):
    """`Model().predict.remote(x)`."""

    def __init__(self, client: Client, declaration: Declaration | None = None) -> None:
        self.client, self.declaration = client, declaration
        if declaration is not None:
            functools.update_wrapper(self, declaration.user, updated=())

    @classmethod
    def from_name(
        cls, app: str, name: str, *, url: str | None = None, token: str | None = None, tenant: str | None = None, ca: str | None = None
    ) -> Cls[Any]:
        """A class that is deployed; its service's URL if that is on another machine, and its tenant, with a token, if it has one. `ca`: a
        file in PEM of the authorities that are trusted where the URL is https; none: that of REKINDLE_CA, or else the system's."""
        return Cls(Client(Service(app, name, url, token, tenant, ca)))

    def __repr__(self) -> str:
        return f"rekindle.Cls({self.client.service.full_name!r})"

    def __call__(self) -> Any:
        return Obj(self.client, self.declaration)
