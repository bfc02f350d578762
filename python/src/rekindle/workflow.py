"""Methods and functions of an app that work on each other's results: one call in, one result out.

`app.workflow(...)` is deployed with its app, and answered by the node (`deployed_workflow.py`). A `Workflow` of no app is followed
here: this program calls each step.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rekindle.both import Both, begin
from rekindle.client import step_note
from rekindle.errors import DeclarationError, SerializationError
from rekindle.function import Function
from rekindle.passing import EXPIRY, LEAST, HandingOn


@dataclass(frozen=True, eq=False)
class Step:
    """One call of a workflow, with the results of those that it comes after."""

    name: str
    function: Function[..., Any]
    after: tuple[Step, ...]
    # Those results are lists, of whose elements it has one each in a call of its own.
    each: bool = False


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
        return self.add(function, after, name, each=False)

    def each(self, function: Function[..., Any], *after: Step, name: str | None = None) -> Step:
        """Calls the function for each element of the lists that these steps give, with one of each list: several calls at once. Its
        result is the list of theirs."""
        if not after:
            raise DeclarationError("a step that is one call for each element comes after others; give those whose results are the lists")
        return self.add(function, after, name, each=True)

    def add(self, function: Function[..., Any], after: tuple[Step, ...], name: str | None, *, each: bool) -> Step:
        if not isinstance(function, Function):
            raise DeclarationError(f"{function!r} is no function of an app; give a method as `Model().predict`, or what @app.function() made")
        foreign = [one.name for one in after if one not in self.steps]
        if foreign:
            raise DeclarationError(f"the steps {', '.join(foreign)} are of another workflow; give steps that this one's step() returned")
        made = Step(name or function.name, function, after, each)
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
            given = [results[one] for one in step.after]
            if step.each:
                results[step] = [step.function.local(*one) for one in elements(step, given)]
            elif step.after:
                results[step] = step.function.local(*given)
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


def elements(step: Step, given: list[Any]) -> list[tuple[Any, ...]]:
    """The arguments of each call of a step that is one for each element."""
    if not all(isinstance(one, list | tuple) for one in given):
        kinds = ", ".join(type(one).__name__ for one in given)
        raise SerializationError(
            f"the step {step.name!r} is one call for each element, and what it comes after gave {kinds}; return a list or a tuple there"
        )
    lengths = [len(one) for one in given]
    if len(set(lengths)) > 1:
        raise SerializationError(
            f"the step {step.name!r} has one element of each list in a call, and they have {lengths}; return lists of one length"
        )
    return list(zip(*given, strict=True))


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

    def call(self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], done: Callable[[Any], None] | None = None) -> None:
        def run() -> None:
            try:
                client = step.function.client
                result = client.call(step.function.name, args, kwargs, patient=step.each, handing_on=self.handing_on[step])
            except BaseException as error:
                error.add_note(step_note(step.name))
                self.fail(error)
            else:
                done(result) if done else self.go_on(step, result)

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
            self.go_to(one, [self.results[before] for before in one.after])

    def go_to(self, step: Step, given: list[Any]) -> None:
        if not step.each:
            return self.call(step, tuple(given), {})
        try:
            calls = elements(step, given)
        except SerializationError as error:
            return self.fail(error)
        results = [None] * len(calls)
        if not calls:
            return self.go_on(step, results)
        left = iter(range(len(calls) - 1, -1, -1))

        def done(number: int, result: Any) -> None:
            with self.lock:
                results[number] = result
                is_last = not next(left)
            if is_last:
                self.go_on(step, results)

        for number, one in enumerate(calls):
            self.call(step, one, {}, functools.partial(done, number))
        return None

    def fail(self, error: BaseException) -> None:
        """Nothing comes of it any more, and no further step is called."""
        with self.lock:
            if not self.future.done():
                self.future.set_exception(error)
