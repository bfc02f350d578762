"""Methods and functions of an app that work on each other's results: one call in, one result out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rekindle.both import Both, begin
from rekindle.errors import DeclarationError
from rekindle.exchange import HandingOn
from rekindle.function import Function

# From so many bytes on an array is handed on where it lies; below, a call with the array itself takes no longer.
LEAST = 512 << 10
# Seconds that a result waits for those who want it, should one of them fail.
EXPIRY = 60.0


@dataclass(frozen=True, eq=False)
class Step:
    """One call of a workflow, with the results of those that it comes after."""

    name: str
    function: Function[..., Any]
    after: tuple[Step, ...]


class Workflow:
    """Steps in their order; the one whose result no other takes gives the workflow's.

        flow = rekindle.Workflow()
        frames = flow.step(Decoder().decode)
        boxes, words = flow.step(Detector().detect, frames), flow.step(Reader().read, frames)
        flow.step(Joiner().join, boxes, words)
        flow.remote(video)

    Results that are arrays on a GPU of at least `least` bytes stay there, and the next steps have them as arrays that can only be
    read. Others go through the program that calls.
    """

    def __init__(self, *, least: int = LEAST, expiry: float = EXPIRY) -> None:
        self.least, self.expiry = least, expiry
        self.steps: list[Step] = []

    def step(self, function: Function[..., Any], *after: Step, name: str | None = None) -> Step:
        """Calls the function with the results of these steps, in this order; with the workflow's arguments if there are none."""
        if not isinstance(function, Function):
            raise DeclarationError(f"{function!r} is no function of an app; give a method as `Model().predict`, or what @app.function() made")
        foreign = [one.name for one in after if one not in self.steps]
        if foreign:
            raise DeclarationError(f"the steps {', '.join(foreign)} are of another workflow; give steps that this one's step() returned")
        made = Step(name or function.name, function, after)
        self.steps.append(made)
        return made

    @property
    def remote(self) -> Both[..., Any]:
        """Runs it and waits for its result. What a step raises is raised, with the step's name in a note."""
        return Both(self.run)

    def local(self, *args: Any, **kwargs: Any) -> Any:
        """Runs all of it in this program, one step after the other."""
        last = self.last()
        results: dict[Step, Any] = {}
        for step in self.steps:
            if step.after:
                results[step] = step.function.local(*(results[one] for one in step.after))
            else:
                results[step] = step.function.local(*args, **kwargs)
        return results[last]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        last = self.last()
        results: dict[Step, Future[Any]] = {}
        # In their order: whoever waits for a result has a thread later than who makes it.
        for step in self.steps:
            results[step] = begin(self.work(step, [results[one] for one in step.after], args, kwargs))
        return results[last].result()

    def last(self) -> Step:
        ends = [step for step in self.steps if not self.uses(step)]
        if len(ends) != 1:
            names = ", ".join(step.name for step in ends) or "none"
            raise DeclarationError(f"a workflow has one step whose result no other takes, and this one has {names}; add one that joins them")
        return ends[0]

    def uses(self, step: Step) -> int:
        return sum(other.after.count(step) for other in self.steps)

    def work(self, step: Step, inputs: list[Future[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """What a step does in its thread."""
        handing_on = HandingOn(self.least, self.uses(step), self.expiry)

        def run() -> Any:
            given = tuple(one.result() for one in inputs)
            named = {} if step.after else kwargs
            try:
                return step.function.client.call(step.function.name, given if step.after else args, named, handing_on=handing_on)
            except Exception as error:
                error.add_note(f"in the step {step.name!r} of a workflow")
                raise

        return run
