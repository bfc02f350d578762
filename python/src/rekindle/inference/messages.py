"""Tensors as the Open Inference Protocol writes them: numbers in JSON, or their bytes behind it.

    JSON, of Inference-Header-Content-Length bytes ┄ bytes of a tensor ┄ bytes of another ┄

In JSON, a tensor whose bytes are behind has `binary_data_size` among its parameters, in place of `data`. A text has its length in
front, in 4 bytes. Numbers are little-endian.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy

from rekindle.arrays import as_array
from rekindle.inference.http import Refused
from rekindle.inference.tensors import TensorSpec

Array = numpy.ndarray[Any, Any]

# Of texts' lengths.
LENGTH = 4


def storage(dtype: str) -> numpy.dtype[Any]:
    """What an array of it has in NumPy."""
    return numpy.dtype({"bfloat16": "float32", "bytes": "object"}.get(dtype, dtype))


def element_bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else storage(dtype).itemsize


def from_json(name: str, spec: TensorSpec, shape: list[int], data: Any) -> Array:
    if not isinstance(data, list):
        raise Refused(400, f"the data of the input {name!r} is no list")
    if spec.dtype == "bytes":
        found = flat(data)
        if not all(isinstance(text, str) for text in found):
            raise Refused(400, f"the data of the input {name!r} is not all texts")
        return texts(name, shape, [text.encode() for text in found])
    array, wanted = numbers(name, spec, data), storage(spec.dtype)
    if array.size and not is_taken(array, wanted):
        raise Refused(400, f"the data of the input {name!r} is not all {spec.datatype}")
    check_count(name, shape, array.size)
    with numpy.errstate(over="ignore"):
        return rounded(spec.dtype, array.astype(wanted).reshape(shape))


def numbers(name: str, spec: TensorSpec, data: list[Any]) -> Array:
    """As NumPy takes them."""
    if spec.dtype == "uint64":
        # It would make a number of float64 of large ones beside small ones.
        found = flat(data)
        if all(type(number) is int and 0 <= number < 1 << 64 for number in found):
            return numpy.array(found, "uint64")
    try:
        return numpy.array(data)
    except (ValueError, OverflowError):
        raise Refused(400, f"the data of the input {name!r} has lists of different lengths") from None


def is_taken(found: Array, wanted: numpy.dtype[Any]) -> bool:
    """Whether these numbers are such without a loss of more than precision."""
    if wanted.kind == "b":
        return bool(found.dtype.kind == "b")
    if wanted.kind == "f":
        return bool(found.dtype.kind in "iuf")
    if found.dtype.kind not in "iu":
        return False
    limits = numpy.iinfo(wanted)
    least, most = int(found.min()), int(found.max())
    return limits.min <= least and most <= limits.max


def flat(data: list[Any]) -> list[Any]:
    """What is in lists of lists, however deep."""
    found: list[Any] = []
    waiting = [iter(data)]
    while waiting:
        for element in waiting[-1]:
            if isinstance(element, list):
                waiting.append(iter(element))
                break
            found.append(element)
        else:
            waiting.pop()
    return found


def check_count(name: str, shape: list[int], count: int) -> None:
    if count != math.prod(shape):
        raise Refused(400, f"the data of the input {name!r} has {count} elements, and its shape {shape} has {math.prod(shape)}")


def texts(name: str, shape: list[int], found: list[bytes]) -> Array:
    check_count(name, shape, len(found))
    array = numpy.empty(len(found), object)
    array[:] = found
    return array.reshape(shape)


def from_bytes(name: str, spec: TensorSpec, shape: list[int], data: memoryview) -> Array:
    if spec.dtype == "bytes":
        return texts(name, shape, split(name, data))
    wanted = math.prod(shape) * element_bytes(spec.dtype)
    if data.nbytes != wanted:
        raise Refused(400, f"the input {name!r} has {data.nbytes} bytes, and its shape {shape} of {spec.datatype} has {wanted}")
    if spec.dtype == "bfloat16":
        return widened(numpy.frombuffer(data, "<u2")).reshape(shape)
    # A copy, which is aligned, and which may be written to.
    return numpy.frombuffer(data, storage(spec.dtype).newbyteorder("<")).astype(storage(spec.dtype)).reshape(shape)


def split(name: str, data: memoryview) -> list[bytes]:
    found, at = [], 0
    while at < data.nbytes:
        end = at + LENGTH + int.from_bytes(data[at : at + LENGTH], "little")
        if at + LENGTH > data.nbytes or end > data.nbytes:
            raise Refused(400, f"the input {name!r} ends within a text")
        found.append(bytes(data[at + LENGTH : end]))
        at = end
    return found


def widened(halves: Array) -> Array:
    """bfloat16 as float32."""
    wide: Array = (halves.astype("uint32") << 16).view("float32")
    return wide


def halves_of(array: Array) -> Array:
    """float32 as bfloat16, to the nearest, the even one of two. What is no number stays none."""
    whole = numpy.ascontiguousarray(array, "float32").view("uint32")
    up = whole + (((whole >> 16) & 1) + 0x7FFF)
    found: Array = numpy.where(numpy.isnan(array), (whole >> 16) | 0x40, up >> 16).astype("<u2")
    return found


def rounded(dtype: str, array: Array) -> Array:
    return widened(halves_of(array)).reshape(array.shape) if dtype == "bfloat16" else array


def output_array(name: str, spec: TensorSpec, value: Any) -> Array:
    """What a method returned for this output, as it was declared."""
    if spec.dtype == "bytes":
        array = numpy.asarray(value, object)
        encoded = [text.encode() if isinstance(text, str) else text for text in array.reshape(-1).tolist()]
        if not all(isinstance(text, bytes) for text in encoded):
            raise TypeError(f"the output {name!r} is not all texts")
        array = texts(name, list(array.shape), encoded)
    else:
        found = as_array(value)
        array = numpy.asarray(value if found is None else found)
        if not numpy.can_cast(array.dtype, storage(spec.dtype), "same_kind"):
            raise TypeError(f"the output {name!r} is {array.dtype}, and was declared as {spec.dtype}")
        array = array.astype(storage(spec.dtype), copy=False)
    if not spec.fits(array.shape):
        raise ValueError(f"the output {name!r} has the shape {array.shape}, and was declared as {spec.described()}")
    return array


def to_json(name: str, spec: TensorSpec, array: Array) -> list[Any]:
    """Its elements, in C order."""
    if spec.dtype == "bytes":
        try:
            return [text.decode() for text in array.reshape(-1).tolist()]
        except UnicodeDecodeError:
            raise Refused(400, f"the output {name!r} is no text of UTF-8, which JSON cannot have; ask for binary data") from None
    if array.dtype.kind == "f" and not numpy.isfinite(array).all():
        raise Refused(400, f"the output {name!r} has an element that is infinite or no number, which JSON cannot have; ask for binary data")
    found: list[Any] = array.reshape(-1).tolist()
    return found


def to_bytes(spec: TensorSpec, array: Array) -> bytes:
    if spec.dtype == "bytes":
        rows = ((len(text).to_bytes(LENGTH, "little"), text) for text in array.reshape(-1).tolist())
        return b"".join(itertools.chain.from_iterable(rows))
    if spec.dtype == "bfloat16":
        return halves_of(array).tobytes()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
