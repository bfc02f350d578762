"""Workflows that are deployed: the node follows the graph, and whoever calls has one request and one answer."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rekindle.address import Service
from rekindle.both import Both
from rekindle.client import Client
from rekindle.errors import DeclarationError
from rekindle.function import Function, FunctionCall, Map
from rekindle.named_data import HEADER
from rekindle.passing import EXPIRY, LEAST
from rekindle.retries import NONE
from rekindle.workflow import Step, Workflow


@dataclass(frozen=True)
class Options:
    """What is declared of a workflow. Times are in seconds."""

    # How long all of it may take.
    timeout: float = 300.0
    # How many calls it has at once; further ones are refused.
    concurrency: int = 100
    # From so many bytes on an array goes from step to step by reference, and how long it waits for a step that fails.
    least: int = LEAST
    expiry: float = EXPIRY
    # Where HTTP clients come: `[ADDRESS:]PORT`. None: one of 127.0.0.1 that is free, and stays.
    port: str | None = None

    @classmethod
    def declared(cls, name: str, options: dict[str, Any]) -> Options:
        known = cls.__dataclass_fields__
        for option in options:
            if option not in known:
                raise DeclarationError(f"{name}: there is no option {option!r}; there are {', '.join(known)}")
        made = cls(**options)
        for option, least in (("timeout", 0.001), ("expiry", 0)):
            value = getattr(made, option)
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < 1e9:
                raise DeclarationError(f"{name}: {option} is {value!r}; give a number of seconds")
        for option, least in (("concurrency", 1), ("least", 0)):
            value = getattr(made, option)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 32:
                raise DeclarationError(f"{name}: {option} is {value!r}; give a whole number, {least} or more")
        return made


class DeployedWorkflow(Workflow):
    """`flow = app.workflow("faces")`, then `flow.step(...)`; `flow.remote(x)` calls the one that is deployed."""

    def __init__(self, service: Service, options: dict[str, Any]) -> None:
        self.options = Options.declared(service.name, options)
        super().__init__(least=self.options.least, expiry=self.options.expiry)
        self.service = service
        self.function: Function[..., Any] = Function(Client(service, NONE), service.name)

    def __repr__(self) -> str:
        return f"rekindle.Workflow({self.service.full_name!r})"

    @property
    def remote(self) -> Both[..., Any]:
        """Calls it and waits for its result. What a step raises is raised, with the step's name in a note."""
        return self.function.remote

    @property
    def map(self) -> Map[Any]:
        return self.function.map

    def spawn(self, *args: Any, **kwargs: Any) -> FunctionCall[Any]:
        return self.function.spawn(*args, **kwargs)

    def begin(self, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.spawn(*args, **kwargs).future

    def graph(self) -> dict[str, Any]:
        """As the node has it (`crates/protocol/src/workflow.rs`). Functions of other apps are to be there."""
        self.last()
        return {
            "app": self.service.app,
            "steps": [self.described(step) for step in self.steps],
            "least": self.options.least,
            "expiry_ms": round(self.options.expiry * 1000),
            "timeout_ms": max(1, round(self.options.timeout * 1000)),
            "most": self.options.concurrency,
        }

    def described(self, step: Step) -> dict[str, Any]:
        client = step.function.client
        name, tenant = self.place_of(client.service, step)
        retries = client.declared()
        return {
            "name": step.name,
            "service": name,
            "tenant": tenant,
            "method": step.function.name,
            "after": [self.steps.index(one) for one in step.after],
            "each": step.each,
            "retries": {
                "max": retries.max_retries,
                "initial_ms": round(retries.initial_delay * 1000),
                "backoff": retries.backoff,
                "longest_ms": round(retries.max_delay * 1000),
            },
            "data": client.data.get(HEADER),
        }

    def place_of(self, service: Service, step: Step) -> tuple[str, str | None]:
        """The service, and its tenant: the app's own, or one that is there."""
        if service.url is not None:
            raise DeclarationError(f"the step {step.name!r} of {self!r} is at {service.url}; a workflow that is deployed calls this node's services")
        if service.app == self.service.app and service.tenant == self.service.tenant:
            return service.full_name, service.tenant
        row = service.row()
        return row["name"], row["tenant"]
