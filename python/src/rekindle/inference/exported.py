"""A graph of torch.export's, as `rekindle convert` wrote it: `graph.py` has its operators, `model.json` what they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import numpy

from rekindle.data import Data
from rekindle.inference.bound import Bound
from rekindle.inference.messages import Array, storage
from rekindle.inference.placed import from_document, read
from rekindle.inference.tensors import TensorSpec

GRAPH, MODEL = "graph.py", "model.json"


class Exported(Bound):
    def __init__(
        self, directory: Path, data: Data, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], device: str = "cuda"
    ) -> None:
        self.model = read(directory / MODEL)
        super().__init__(data, from_document(self.model["weights"]), device)
        self.inputs, self.outputs = dict(inputs), dict(outputs)
        self.graph = graph_of(directory / GRAPH)
        self.tensors: dict[str, Any] = {}

    def bind(self, tensors: dict[str, Any]) -> None:
        # What the graph writes to is its own; the object's is not to be changed.
        self.tensors = tensors | {name: tensors[name].clone() for name in self.model["written"]}

    def forget(self) -> None:
        self.tensors, self.array = {}, None

    def try_out(self) -> None:
        self.compute([numpy.zeros(shape, storage(spec.dtype)) for shape, spec in zip(self.model["trial"], self.inputs.values(), strict=True)])

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """The outputs for these inputs, in the order in which they are declared."""
        for (name, spec), array in zip(self.inputs.items(), arrays, strict=True):
            if not spec.fits(numpy.shape(array)):
                raise ValueError(f"the input {name!r} has the shape {numpy.shape(array)}; it is to be {spec.described()}")
        self.current()
        return self.compute(arrays)

    def batch(self, *columns: Sequence[Array]) -> list[tuple[Array, ...]]:
        """The outputs of each element, for inputs that are lists of elements."""
        count = len(columns[0])
        # A graph may be for batches of two and more alone.
        more = max(0, self.model["least"] - count)
        found = self(*(numpy.stack([*column, *[column[-1]] * more]) for column in columns))
        return [tuple(array[at] for array in found) for at in range(count)]

    def compute(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        import torch

        given = [self.to_device(array, spec) for array, spec in zip(arrays, self.inputs.values(), strict=True)]
        kinds: dict[str, Any] = {"weight": self.tensors, "input": given}
        with torch.inference_mode():
            results = self.graph(*(kinds[kind][what] if kind in kinds else what for kind, what in self.model["arguments"]))
            found = []
            for (kind, what), result in zip(self.model["results"], results, strict=True):
                if kind == "output":
                    found.append(result)
                elif kind == "written":
                    self.tensors[what].copy_(result)
            return tuple(to_host(result, torch) for result in found)

    def to_device(self, array: Array, spec: TensorSpec) -> Any:
        import torch

        host = torch.from_numpy(numpy.require(array, storage(spec.dtype), ["C", "W"]))
        return host.to(self.device, getattr(torch, spec.dtype))


def to_host(tensor: Any, torch: Any) -> Array:
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    found: Array = tensor.cpu().numpy()
    return found


def graph_of(file: Path) -> Any:
    """An object to be called. No other module has its name."""
    loader = SourceFileLoader(f"graph of {file.parent}", str(file))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module.Graph()
