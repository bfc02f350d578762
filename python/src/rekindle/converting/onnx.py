"""ONNX models: onnx2torch makes a module of torch's of one, and torch.export traces that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rekindle.converting import exported
from rekindle.converting.made import ConvertError, Made

# The size with which one that may be any is traced, unless it is the batch's.
ANY, BATCH = 8, 2


def from_file(file: Path, device: str) -> Made:
    try:
        import onnx
        import onnx2torch
    except ImportError as error:
        raise ConvertError(f"ONNX models need {error.name}, which is not installed; install it: python3 -m pip install onnx onnx2torch") from error
    try:
        model = onnx.load(str(file))
    except Exception as error:
        raise ConvertError(f"{file} cannot be read as a model of ONNX: {exported.said(error)}") from error
    held = {one.name for one in model.graph.initializer}
    rows = [one for one in model.graph.input if one.name not in held]
    arguments, dynamic = examples(rows, onnx)
    try:
        module = onnx2torch.convert(model).eval()
    except NotImplementedError as error:
        raise ConvertError(f"{file} has an operator that onnx2torch lacks: {exported.said(error)}") from error
    except Exception as error:
        raise ConvertError(f"onnx2torch cannot convert {file}: {exported.said(error)}") from error
    made = exported.from_module(module, file.name, arguments, {}, dynamic, device)
    # In the order in which they were given, by ONNX's names.
    if len(made.inputs) == len(rows):
        made.inputs = dict(zip([one.name for one in rows], made.inputs.values(), strict=True))
    if len(made.outputs) == len(model.graph.output):
        names = [one.name for one in model.graph.output]
        made.model["results"] = rename(made.model["results"], dict(zip(made.outputs, names, strict=True)))
        made.outputs = dict(zip(names, made.outputs.values(), strict=True))
    return made


def rename(results: list[tuple[str, Any]], names: dict[str, str]) -> list[tuple[str, Any]]:
    return [(kind, names[what] if kind == "output" else what) for kind, what in results]


def examples(rows: list[Any], onnx: Any) -> tuple[tuple[Any, ...], Any]:
    """Zeros of the inputs' shapes, and which of their sizes may be any."""
    import torch

    arguments, dynamic = [], []
    for one in rows:
        kind = one.type.tensor_type
        if not one.type.HasField("tensor_type"):
            raise ConvertError(f"the input {one.name!r} is no tensor; make a model of tensors of it")
        shape, free = [], {}
        for at, size in enumerate(kind.shape.dim):
            if size.HasField("dim_value"):
                shape.append(size.dim_value)
            else:
                shape.append(ANY if at else BATCH)
                free[at] = torch.export.Dim.AUTO
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
        if not hasattr(torch, dtype):
            raise ConvertError(f"the input {one.name!r} is {dtype}, which torch has no tensors of; make a model of numbers of it")
        arguments.append(torch.zeros(shape, dtype=getattr(torch, dtype)))
        dynamic.append(free or None)
    return tuple(arguments), tuple(dynamic)
