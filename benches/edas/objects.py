"""Weights and data as objects of a store: files of the safetensors format.

    length of the header, 8 bytes │ header, JSON: name → dtype, shape, data_offsets │ the tensors' bytes, without holes

Each tensor begins at a multiple of 256 bytes of the file, as what a GPU's allocator gives does: what lies between is a tensor
of bytes called `padding.N`, and the header ends in spaces.
"""

import json
import math
from dataclasses import dataclass

ALIGNMENT = 256
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1}


@dataclass(frozen=True)
class Placed:
    dtype: str
    shape: tuple[int, ...]
    # In the file.
    begin: int
    end: int


def plan(tensors):
    """`{name: Placed}`, the file's first bytes and how many it has, for `[(name, dtype, shape), ...]`."""
    header, at = {}, 0

    def add(name, dtype, shape, size):
        nonlocal at
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size

    for number, (name, dtype, shape) in enumerate(tensors):
        add(name, dtype, shape, BYTES[dtype] * math.prod(shape))
        if gap := -at % ALIGNMENT:
            add(f"padding.{number}", "U8", [gap], gap)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    first = len(text).to_bytes(8, "little") + text
    return placed(header, len(first)), first, len(first) + at


def placed(header, first):
    """Of each tensor but for the padding, where it lies; `first` is where the tensors begin."""
    return {
        name: Placed(row["dtype"], tuple(row["shape"]), first + row["data_offsets"][0], first + row["data_offsets"][1])
        for name, row in header.items()
        if not name.startswith("padding.")
    }


def read_plan(path):
    """`{name: Placed}` of a file."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return placed(json.loads(file.read(length)), 8 + length)


def write(path, tensors, contents):
    """`contents(name)` gives the bytes of each, in the order of the plan."""
    plans, first, size = plan(tensors)
    with open(path, "wb") as file:
        file.write(first)
        for name, row in plans.items():
            file.seek(row.begin)
            file.write(contents(name))
        file.truncate(size)
    return size
