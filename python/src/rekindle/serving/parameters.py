"""What arrays on the GPU become for a method: what the annotations of its parameters name.

The type is there only if the method's own file has imported its library; nothing is imported for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

from rekindle.device_array import DeviceArray
from rekindle.passing import changed

Make = Callable[[DeviceArray], Any]

# By the first part of the module's name, and the type's.
MAKERS: dict[tuple[str, str], Make] = {
    ("torch", "Tensor"): lambda array: sys.modules["torch"].from_dlpack(array),
    ("cupy", "ndarray"): lambda array: sys.modules["cupy"].from_dlpack(array),
    ("jax", "Array"): lambda array: importlib.import_module("jax.dlpack").from_dlpack(array),
    ("numba", "DeviceNDArray"): lambda array: importlib.import_module("numba.cuda").as_cuda_array(array),
    ("numpy", "ndarray"): DeviceArray.copy_to_host,
}


class Parameters:
    """Of one method, with what makes the arrays of those whose annotation names one such type."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.makers: dict[str, Make] = {}
        try:
            self.signature = inspect.signature(function)
        except (TypeError, ValueError):
            return
        for parameter in self.signature.parameters.values():
            found = set(makers_of(evaluated(parameter.annotation, function)))
            if len(found) == 1:
                self.makers[parameter.name] = found.pop()

    def made(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the method wants them."""
        if not self.makers:
            return args, kwargs
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            # The call says so itself.
            return args, kwargs
        for name, make in self.makers.items():
            if name in bound.arguments:
                bound.arguments[name] = changed(bound.arguments[name], functools.partial(made_by, make))
        return list(bound.args), bound.kwargs


def made_by(make: Make, value: Any) -> Any:
    """What it makes of an array; anything else stays."""
    return make(value) if type(value) is DeviceArray else value


def evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """What an annotation that is text means in the function's file; nothing if that does not know it."""
    if not isinstance(annotation, str):
        return annotation
    names = getattr(inspect.unwrap(function), "__globals__", {})
    with contextlib.suppress(Exception):
        return eval(annotation, names)  # noqa: S307  It is the user's own code.
    return None


def makers_of(annotation: Any) -> Iterator[Make]:
    """Of the types of arrays that it names, at any depth."""
    kind = typing.get_origin(annotation) or annotation
    if isinstance(kind, type):
        make = MAKERS.get((kind.__module__.partition(".")[0], kind.__qualname__))
        if make:
            yield make
            return
    for part in typing.get_args(annotation):
        yield from makers_of(part)
