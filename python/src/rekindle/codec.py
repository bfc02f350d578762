"""Messages: arguments, results and exceptions as bytes.

A message is a tree in msgpack, and behind it the bytes of its arrays, which are neither copied nor looked at:

    "RKM1"  size of the tree (u32)  tree ┄ array ┄ array ┄      each ┄ fills up to a multiple of 64 bytes

All numbers are little-endian. The tree is `[value, [bytes of each array]]`. Types that msgpack lacks are extensions.

There are versions of what calls may have in them. In the first there are no arrays of the caller's GPU (`ON_GPU`), nor the fields
`held` and `place` of `HandingOn`. A call says which version it needs, and a function which it understands (`client`).
"""

from __future__ import annotations

import datetime
from typing import Any

import msgpack

from rekindle import arrays
from rekindle.device_array import DTYPES, Contents, size_of
from rekindle.errors import SerializationError
from rekindle.exchange import Ref

CONTENT_TYPE = "application/x-rekindle"

# The latest that this package understands, and the first, which all do.
VERSION, FIRST = 2, 1

MAGIC = b"RKM1"
HEAD = len(MAGIC) + 4
ALIGNMENT = 64

# Extensions. Those of sequences hold the sequence's elements, in msgpack.
ARRAY, SCALAR, TUPLE, SET, FROZENSET, COMPLEX, INTEGER, DATETIME, REF, ON_GPU = range(10)
SEQUENCES: dict[int, type] = {TUPLE: tuple, SET: set, FROZENSET: frozenset}


def encode(value: Any) -> list[bytes | memoryview]:
    """The message, in pieces."""
    buffers: list[memoryview] = []

    def pack(value: Any) -> bytes:
        packed: bytes = msgpack.packb(value, default=extend, strict_types=True)
        return packed

    def extend(value: Any) -> Any:
        kind = type(value)
        for code, sequence in SEQUENCES.items():
            if kind is sequence:
                return msgpack.ExtType(code, pack(list(value)))
        if kind is int:
            return msgpack.ExtType(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if kind is complex:
            return msgpack.ExtType(COMPLEX, pack([value.real, value.imag]))
        if kind is datetime.datetime:
            return msgpack.ExtType(DATETIME, value.isoformat().encode())
        if kind is Ref:
            return msgpack.ExtType(REF, pack([value.id, value.dtype, list(value.shape), value.given]))
        if kind is Contents:
            buffers.append(value.data)
            return msgpack.ExtType(ON_GPU, pack([len(buffers) - 1, value.dtype, list(value.shape)]))
        if kind in (bytearray, memoryview):
            return bytes(value)
        array = arrays.as_array(value)
        if array is None:
            raise SerializationError(
                f"a value of type {kind.__module__}.{kind.__qualname__} cannot be sent; "
                "send numbers, text, bytes, lists, tuples, sets, dictionaries, dates or arrays"
            )
        code = SCALAR if array.ndim == 0 and not hasattr(value, "__setitem__") else ARRAY
        description = arrays.describe(array)
        buffers.append(arrays.contents(array))
        return msgpack.ExtType(code, pack([len(buffers) - 1, description, list(array.shape)]))

    # The sizes are known once the value is packed: [value, sizes] is put together by hand.
    try:
        packed = pack(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise SerializationError(f"the value cannot be sent: {error}") from error
    tree = b"\x92" + packed + pack([buffer.nbytes for buffer in buffers])
    pieces: list[bytes | memoryview] = [MAGIC + len(tree).to_bytes(4, "little") + tree]
    length = HEAD + len(tree)
    for buffer in buffers:
        pieces.append(bytes(-length % ALIGNMENT))
        pieces.append(buffer)
        length += len(pieces[-2]) + buffer.nbytes
    return pieces


def decode(message: bytes | bytearray | memoryview, on_gpu: list[Ref | Contents] | None = None) -> Any:
    """The value. Its arrays lie in the message, and can be written to if that can. Those of a GPU are noted in `on_gpu`."""
    view = memoryview(message).cast("B")
    try:
        return decode_tree(view, [] if on_gpu is None else on_gpu)
    except SerializationError:
        raise
    except Exception as error:
        raise SerializationError(f"a message of {len(view)} bytes cannot be understood: {error}") from error


def decode_tree(view: memoryview, on_gpu: list[Ref | Contents]) -> Any:
    size = int.from_bytes(view[len(MAGIC) : HEAD], "little")
    if view[: len(MAGIC)] != MAGIC or len(view) < HEAD + size:
        raise SerializationError(f"{len(view)} bytes that begin with {bytes(view[:8])!r} are no whole message of Rekindle's functions")
    tree = view[HEAD : HEAD + size]
    # The arrays' places are needed to make the value, and stand behind it.
    unpacker = msgpack.Unpacker(ext_hook=msgpack.ExtType, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(tree)
    if unpacker.read_array_header() != 2:
        raise ValueError("it is no pair")
    unpacker.skip()
    buffers, end = [], HEAD + size
    for length in unpacker.unpack():
        start = end + -end % ALIGNMENT
        end = start + length
        buffers.append(view[start:end])
    if end != len(view):
        raise ValueError(f"it should have {end} bytes")

    def unpack(packed: bytes) -> Any:
        return msgpack.unpackb(packed, ext_hook=restore, strict_map_key=False)

    def restore(code: int, data: bytes) -> Any:
        if code in SEQUENCES:
            return SEQUENCES[code](unpack(data))
        if code == INTEGER:
            return int.from_bytes(data, "little", signed=True)
        if code == COMPLEX:
            return complex(*unpack(data))
        if code == DATETIME:
            return datetime.datetime.fromisoformat(data.decode())
        if code == REF:
            name, dtype, sizes, given = unpack(data)
            on_gpu.append(Ref(name, dtype, tuple(sizes), given))
            return on_gpu[-1]
        if code == ON_GPU:
            index, dtype, shape = unpack(data)
            if dtype not in DTYPES or size_of(dtype, shape) != buffers[index].nbytes:
                raise ValueError(f"it has {buffers[index].nbytes} bytes for an array of {dtype!r} and shape {shape}")
            on_gpu.append(Contents(dtype, tuple(shape), buffers[index]))
            return on_gpu[-1]
        if code not in (ARRAY, SCALAR):
            raise ValueError(
                f"it has an extension {code}, which is none up to version {VERSION}; deploy again what was called, by the package that calls it"
            )
        index, description, shape = unpack(data)
        array = arrays.from_contents(buffers[index], description, shape)
        return array[()] if code == SCALAR else array

    return unpack(bytes(tree))[0]
