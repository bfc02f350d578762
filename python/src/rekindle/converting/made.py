"""What a model is converted to, before any of it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rekindle.converting.weights import NAMES, write
from rekindle.errors import Error
from rekindle.inference.placed import Placed
from rekindle.inference.tensors import TensorSpec


class ConvertError(Error):
    """A model that cannot be converted."""


@dataclass
class Made:
    """`tensors` are torch's, on the host, by name; names of the same tensor are in the file once."""

    tensors: Mapping[str, Any]
    # Files of the app, by their names.
    texts: dict[str, str] = field(default_factory=dict)
    copies: dict[str, Path] = field(default_factory=dict)
    # What `model.json` has beside the weights.
    model: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, TensorSpec] = field(default_factory=dict)
    outputs: dict[str, TensorSpec] = field(default_factory=dict)
    # The largest batch; none: inputs are given to the model as they come.
    batch: int | None = None
    is_language: bool = False

    def write_weights(self, file: Path) -> tuple[dict[str, Placed], int]:
        first: dict[Any, str] = {}
        same = {name: first.setdefault(identity(tensor), name) for name, tensor in self.tensors.items()}
        rows = []
        for name in first.values():
            tensor = self.tensors[name]
            rows.append((name, NAMES[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape)))
        placed, size = write(file, rows, lambda name: bytes_of(self.tensors[name]))
        return {name: placed[same[name]] for name in self.tensors}, size

    def check(self) -> None:
        for name, tensor in self.tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in NAMES:
                raise ConvertError(f"the tensor {name!r} is {dtype}, which no file of safetensors has; convert it before")
        if not any(math.prod(tensor.shape) for tensor in self.tensors.values()):
            raise ConvertError("the model has no weights, so that there is nothing to declare; write a class for it by hand")


def identity(tensor: Any) -> Any:
    """Two with the same have the same elements, in the same order."""
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())) if tensor.numel() else id(tensor)


def bytes_of(tensor: Any) -> Any:
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


Convert = Callable[[Path, str], Made]
