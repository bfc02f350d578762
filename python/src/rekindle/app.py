"""Apps: names for the functions and classes of a file, each of which becomes a service."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from rekindle.address import NOBODY, Service
from rekindle.client import Client
from rekindle.cls import Cls
from rekindle.data import Data
from rekindle.declaration import Declaration
from rekindle.deployed_workflow import DeployedWorkflow
from rekindle.errors import DeclarationError
from rekindle.function import Function

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
# The service's name is made of both, with `-` between, which no function's name has: so it can be told apart again.
PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,30}")


class App:
    """`app = rekindle.App("name")`, then `@app.cls(...)` and `@app.function(...)`."""

    def __init__(self, name: str, *, tenant: str | None = None) -> None:
        """`tenant`: whose services they are; their callers need a token of that tenant."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise DeclarationError(f"{name!r} is no name of an app; take up to 32 letters, digits, - and _")
        if not isinstance(tenant, str | None):
            raise DeclarationError(f"{name}: the tenant is {tenant!r}; give the name of one, or None")
        self.name = name
        self.declarations: dict[str, Declaration] = {}
        self.workflows: dict[str, DeployedWorkflow] = {}
        self.tenant = tenant

    def __repr__(self) -> str:
        return f"rekindle.App({self.name!r})"

    @property
    def tenant(self) -> str | None:
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: str | None) -> None:
        """Of all that is declared, too."""
        tenant = None if tenant == NOBODY else tenant
        self._tenant = tenant
        for declaration in self.declarations.values():
            declaration.service.tenant = tenant
        for workflow in self.workflows.values():
            workflow.service.tenant = tenant

    def cls(self, *, data: Mapping[str, Data] | None = None, **options: Any) -> Callable[[type[T]], Cls[T]]:
        """Declares a class with the data that it has as attributes; its options are those of `rekindle.limits.Limits`."""

        def decorate(user: type[T]) -> Cls[T]:
            if not inspect.isclass(user):
                raise DeclarationError(f"{user!r} is no class; use @app.function() for functions")
            declaration = self.declare(user.__name__, user, options, data)
            return Cls(Client(declaration.service, declaration.limits.retries), declaration)

        return decorate

    def function(self, **options: Any) -> Callable[[Callable[P, R]], Function[P, R]]:
        """Declares a function; its options are those of `rekindle.limits.Limits`."""

        def decorate(user: Callable[P, R]) -> Function[P, R]:
            if not inspect.isfunction(user):
                raise DeclarationError(f"{user!r} is no function; use @app.cls() for classes")
            declaration = self.declare(user.__name__, user, options)
            return Function(Client(declaration.service, declaration.limits.retries), user.__name__, user)

        return decorate

    def workflow(self, name: str, **options: Any) -> DeployedWorkflow:
        """A workflow that is deployed with the app: `flow.step(...)` gives it steps. Its options are those of
        `rekindle.deployed_workflow.Options`."""
        self.check_name(name)
        made = DeployedWorkflow(Service(self.name, name, tenant=self.tenant), options)
        self.workflows[name] = made
        return made

    def check_name(self, name: str) -> None:
        if not isinstance(name, str) or not PART.fullmatch(name):
            raise DeclarationError(f"{name!r} cannot be served; take up to 31 ASCII letters, digits and _ for its name")
        if name in self.declarations or name in self.workflows:
            raise DeclarationError(f"the app {self.name!r} has {name!r} twice; give one another name")

    def declare(self, name: str, user: Any, options: dict[str, Any], data: Mapping[str, Data] | None = None) -> Declaration:
        self.check_name(name)
        declaration = Declaration.of(self.name, name, user, options, data or {})
        declaration.service.tenant = self.tenant
        self.declarations[name] = declaration
        return declaration
