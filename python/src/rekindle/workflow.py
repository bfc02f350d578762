"""Methods and functions of an app that work on each other's results: one call in, one result out."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rekindle.both import Both, begin
from rekindle.errors import DeclarationError
from rekindle.function import Function
from rekindle.passing import EXPIRY, LEAST, HandingOn


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
        return Both(self.run, self.begin)

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
        return self.begin(*args, **kwargs).result()

    def begin(self, *args: Any, **kwargs: Any) -> Future[Any]:
        return Run(self, args, kwargs).begin()

    def last(self) -> Step:
        ends = [step for step in self.steps if not self.uses(step)]
        if len(ends) != 1:
            names = ", ".join(step.name for step in ends) or "none"
            raise DeclarationError(f"a workflow has one step whose result no other takes, and this one has {names}; add one that joins them")
        return ends[0]

    def uses(self, step: Step) -> int:
        return sum(other.after.count(step) for other in self.steps)


class Run:
    """One run of a workflow. A step is called when all that it comes after have ended; until then it has no thread."""

    def __init__(self, flow: Workflow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.steps, self.last = tuple(flow.steps), flow.last()
        self.handing_on = {step: HandingOn(flow.least, flow.uses(step), flow.expiry) for step in self.steps}
        self.context = contextvars.copy_context()
        self.lock = threading.Lock()
        self.results: dict[Step, Any] = {}
        self.future: Future[Any] = Future()
        # Nobody can cancel it from now on: what was begun goes on.
        self.future.set_running_or_notify_cancel()

    def begin(self) -> Future[Any]:
        """What its last step has returned, or the first exception of a step."""
        for step in self.steps:
            if not step.after:
                self.call(step, self.args, self.kwargs)
        return self.future

    def call(self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def run() -> None:
            try:
                result = step.function.client.call(step.function.name, args, kwargs, handing_on=self.handing_on[step])
            except BaseException as error:
                error.add_note(f"in the step {step.name!r} of a workflow")
                self.fail(error)
            else:
                self.go_on(step, result)

        try:
            begin(run, self.context)
        except RuntimeError as error:
            # This program ends, or can have no further thread.
            self.fail(error)

    def go_on(self, step: Step, result: Any) -> None:
        """Calls the steps that have waited for this one alone."""
        if step is self.last:
            self.future.set_result(result)
            return
        with self.lock:
            self.results[step] = result
            has_failed = self.future.done()
            due = [one for one in self.steps if step in one.after and self.results.keys() >= set(one.after)]
        for one in due if not has_failed else []:
            self.call(one, tuple(self.results[before] for before in one.after), {})

    def fail(self, error: BaseException) -> None:
        """Nothing comes of it any more, and no further step is called."""
        with self.lock:
            if not self.future.done():
                self.future.set_exception(error)
