"""Tensors in a declared object, which is a file of the safetensors format.

length of the header, 8 bytes │ header, JSON: name → dtype, shape, data_offsets │ the tensors' bytes, without holes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Names of the format's, and torch's.
DTYPES = {
    "BOOL": "bool",
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


@dataclass(frozen=True)
class Placed:
    dtype: str
    shape: tuple[int, ...]
    # In the file.
    begin: int
    end: int

    def view(self, memory: Any) -> Any:
        """Of the file's bytes, a tensor of torch's, this one."""
        import torch

        return memory[self.begin : self.end].view(getattr(torch, DTYPES[self.dtype])).view(self.shape)


def as_document(rows: Mapping[str, Placed]) -> dict[str, Any]:
    return {name: asdict(row) for name, row in rows.items()}


def from_document(document: Mapping[str, Any]) -> dict[str, Placed]:
    return {name: Placed(row["dtype"], tuple(row["shape"]), row["begin"], row["end"]) for name, row in document.items()}


def read(file: Path) -> Any:
    return json.loads(file.read_text())
