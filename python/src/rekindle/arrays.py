"""NumPy arrays in messages, and what can become one: arrays of other libraries come to the host first.

NumPy is not needed by programs that send no arrays, so it is imported when there is one.
"""

from __future__ import annotations

import ast
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from rekindle.errors import SerializationError

if TYPE_CHECKING:
    import numpy

# Some versions of Python, 3.11.7 among them, refuse text that other threads have parsed meanwhile ("AST constructor recursion depth mismatch").
parsing = threading.Lock()


def as_array(value: Any) -> numpy.ndarray[Any, Any] | None:
    """The value as an array in this host's memory; none if it is no array at all."""
    if not is_numpy(value):
        try:
            value = to_host(value)
        except (TypeError, BufferError) as error:
            raise SerializationError(
                f"an array of type {type(value).__qualname__} cannot be one of NumPy's ({error}); convert it, for example to float32"
            ) from error
    if value is None:
        return None
    import numpy

    return numpy.asarray(value)


def is_numpy(value: Any) -> bool:
    """An array or a scalar of NumPy's."""
    module = sys.modules.get("numpy")
    return module is not None and isinstance(value, (module.ndarray, module.generic))


def may_be_elsewhere(value: Any) -> bool:
    """Whether something in its lists, tuples and dictionaries may lie on a GPU."""
    kind = type(value)
    if kind in (list, tuple):
        return any(map(may_be_elsewhere, value))
    if kind is dict:
        return any(map(may_be_elsewhere, value.values()))
    return hasattr(kind, "__dlpack__") and not is_numpy(value) or hasattr(kind, "__cuda_array_interface__") or hasattr(kind, "copy_to_host")


def to_host(value: Any) -> Any:
    """An array that NumPy takes, of a tensor of torch's, an array of CuPy's or numba's, or any that has DLPack."""
    kind = type(value)
    if kind.__module__.startswith("torch") and hasattr(kind, "detach"):
        return value.detach().cpu().numpy()
    if hasattr(kind, "__cuda_array_interface__") and hasattr(kind, "get"):
        return value.get()
    if hasattr(kind, "copy_to_host"):
        return value.copy_to_host()
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        import numpy

        return numpy.from_dlpack(value)
    return None


def describe(array: numpy.ndarray[Any, Any]) -> str:
    """Its type as text."""
    from numpy.lib import format

    description = format.dtype_to_descr(array.dtype)
    if array.dtype.hasobject or format.descr_to_dtype(description) != array.dtype:
        raise SerializationError(f"an array of type {array.dtype} cannot be sent; convert it to numbers, strings or fields of these")
    return repr(description)


def contents(array: numpy.ndarray[Any, Any]) -> memoryview:
    """Its bytes in C order, which are only copied if it does not have them so."""
    import numpy

    # The array may have no format that a memory view knows, such as that of dates.
    return numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data


@functools.lru_cache(maxsize=1024)
def described(description: str) -> numpy.dtype[Any]:
    """The type that a text is of."""
    from numpy.lib import format

    with parsing:
        descr = ast.literal_eval(description)
    dtype: numpy.dtype[Any] = format.descr_to_dtype(descr)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    return dtype


def from_contents(buffer: memoryview, description: str, shape: list[int]) -> numpy.ndarray[Any, Any]:
    """An array of these very bytes."""
    import numpy

    return numpy.ndarray(tuple(shape), described(description), buffer)
