"""Tensors written as one file of the safetensors format, which needs neither torch nor all of them in memory.

Each begins at a multiple of 256 bytes of the file, as what a GPU's allocator gives does: what lies between is a tensor of bytes
called `padding.N`, and the header ends in spaces.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rekindle.inference.placed import DTYPES, Placed

ALIGNMENT = 256
PADDING = "padding."
# Names of the format's, by torch's.
NAMES = {torch: own for own, torch in DTYPES.items()}


def bits(dtype: str) -> int:
    return 8 if dtype.startswith(("BOOL", "F8")) else int("".join(filter(str.isdigit, dtype)))


def plan(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[dict[str, Placed], bytes, int]:
    """Where each lies, the file's first bytes, and how many it has."""
    header: dict[str, Any] = {}
    at = 0

    def add(name: str, dtype: str, shape: list[int]) -> None:
        nonlocal at
        end = at + math.prod(shape) * bits(dtype) // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end

    for number, (name, dtype, shape) in enumerate(tensors):
        add(name, dtype, list(shape))
        if gap := -at % ALIGNMENT:
            add(f"{PADDING}{number}", "U8", [gap])
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    first = len(text).to_bytes(8, "little") + text
    rows = {name: placed(row, len(first)) for name, row in header.items() if not name.startswith(PADDING)}
    return rows, first, len(first) + at


def placed(row: Mapping[str, Any], first: int) -> Placed:
    begin, end = row["data_offsets"]
    return Placed(row["dtype"], tuple(row["shape"]), first + begin, first + end)


def write(file: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]], contents: Callable[[str], Any]) -> tuple[dict[str, Placed], int]:
    """`contents(name)` gives the bytes of each. Returns where they lie, and how many bytes the file has."""
    rows, first, size = plan(tensors)
    with file.open("wb") as out:
        out.write(first)
        for name, row in rows.items():
            out.seek(row.begin)
            out.write(contents(name))
        out.truncate(size)
    return rows, size
