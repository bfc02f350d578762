"""Programs of torch.export's: their graphs as Python text, and what each of their arguments is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rekindle.converting.graph import place, placeholders_written, text
from rekindle.converting.made import ConvertError, Made
from rekindle.inference.exported import GRAPH
from rekindle.inference.tensors import DATATYPES, TensorSpec

# A batch of more is for whoever edits the app.
LARGEST_BATCH = 16
HEAD = '"""The operators of {name}, written by `rekindle convert`."""\n'


def from_file(file: Path, device: str) -> Made:
    import torch

    try:
        program = torch.export.load(str(file))
    except Exception as error:
        raise ConvertError(f"{file} cannot be read as a program of torch.export's: {said(error)}") from error
    return from_program(program, file.name, device)


def from_module(module: Any, name: str, arguments: tuple[Any, ...], options: dict[str, Any], dynamic: Any, device: str) -> Made:
    """Of a module of torch's, traced with these arguments."""
    import torch

    try:
        with torch.no_grad():
            program = torch.export.export(module, arguments, options, dynamic_shapes=dynamic)
    except Exception as error:
        raise ConvertError(f"torch.export cannot trace {name}: {said(error)}") from error
    return from_program(program, name, device)


def said(error: BaseException) -> str:
    """Its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def from_program(program: Any, name: str, device: str) -> Made:
    signature, graph = program.graph_signature, program.graph_module.graph
    values = {node.name: node.meta.get("val") for node in graph.nodes}
    tensors: dict[str, Any] = {}
    arguments: list[tuple[str, Any]] = []
    inputs: dict[str, TensorSpec] = {}
    for row in signature.input_specs:
        arguments.append(argument(program, row, tensors, inputs, values))
    if not inputs:
        raise ConvertError(f"{name} has no input; export it with one")
    results, outputs = results_of(program, values)
    if not outputs:
        raise ConvertError(f"{name} has no output; export it with one")
    place(graph, device)
    written = sorted(tensors_written(program))
    least, most = batch(program, list(arguments_values(program, values)))
    # What is written to is for one request after the other.
    least, most = (1, None) if written else (least, most)
    made = Made(tensors, {GRAPH: HEAD.format(name=name) + text(program.graph_module)}, inputs=inputs, outputs=outputs, batch=most)
    trial = [[least if most and not at else size for at, size in enumerate(shape)] for shape in trial_shapes(program, values)]
    made.model = {"arguments": arguments, "results": results, "written": written, "trial": trial, "least": least}
    return made


def argument(program: Any, row: Any, tensors: dict[str, Any], inputs: dict[str, TensorSpec], values: Mapping[str, Any]) -> tuple[str, Any]:
    kind, target, what = row.kind.name, row.target, type(row.arg).__name__
    if kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
        found = program.state_dict.get(target)
        tensors[target] = found if found is not None else program.constants[target]
        return "weight", target
    if kind != "USER_INPUT":
        raise ConvertError(f"the program has a {kind.lower().replace('_', ' ')} as an input, which cannot be given; export it without")
    if what == "ConstantArgument":
        return "constant", row.arg.value
    if what != "TensorArgument":
        raise ConvertError(f"the input {row.arg.name!r} of the program is no tensor; export it with a number in its place, or with a tensor")
    inputs[row.arg.name] = spec(f"input {row.arg.name!r}", values[row.arg.name])
    return "input", len(inputs) - 1


def spec(what: str, value: Any) -> TensorSpec:
    dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if dtype not in DATATYPES:
        raise ConvertError(f"the {what} of the program is {dtype}, which the protocol has no name for; have the program convert it")
    return TensorSpec(dtype, tuple(size if isinstance(size, int) else None for size in value.shape))


def results_of(program: Any, values: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], dict[str, TensorSpec]]:
    """What becomes of each result, and the outputs."""
    names = output_names(program)
    results: list[tuple[str, Any]] = []
    outputs: dict[str, TensorSpec] = {}
    at = 0
    for row in program.graph_signature.output_specs:
        if row.kind.name == "BUFFER_MUTATION":
            results.append(("written", row.target))
        elif row.kind.name == "USER_OUTPUT":
            name, at = names[at], at + 1
            if type(row.arg).__name__ == "TensorArgument":
                outputs[name] = spec(f"output {name!r}", values[row.arg.name])
                results.append(("output", name))
            else:
                results.append(("left out", None))
        else:
            results.append(("left out", None))
    return results, outputs


def output_names(program: Any) -> list[str]:
    """Of a dictionary its keys; else numbers."""
    from torch.utils import _pytree as pytree

    tree = program.module_call_graph[0].signature.out_spec
    paths = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(tree.num_leaves)), tree))[0]
    if len(paths) == 1 and not paths[0][0]:
        return ["output"]
    words = ["_".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path) for path, _ in paths]
    return [word if word and not word[0].isdigit() else f"output_{word}" for word in words]


def tensors_written(program: Any) -> set[str]:
    """Names of the tensors that the graph writes to, in its place or by a result."""
    named = {row.arg.name: row.target for row in program.graph_signature.input_specs if row.target is not None}
    found = {row.target for row in program.graph_signature.output_specs if row.kind.name == "BUFFER_MUTATION"}
    return found | {named[name] for name in placeholders_written(program.graph_module) if name in named}


def arguments_values(program: Any, values: Mapping[str, Any]) -> Iterator[Any]:
    """Of inputs and outputs that are tensors."""
    for row in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        if row.kind.name in ("USER_INPUT", "USER_OUTPUT") and type(row.arg).__name__ == "TensorArgument":
            yield values[row.arg.name]


def batch(program: Any, given: list[Any]) -> tuple[int, int | None]:
    """The least and the largest batch; none, unless the first size of all is the same one, and no other may be any."""
    sizes = {str(value.shape[0]) if len(value.shape) else "" for value in given}
    others = [size for value in given for size in value.shape[1:] if not isinstance(size, int)]
    firsts = [value.shape[0] for value in given if len(value.shape)]
    if not firsts or len(sizes) != 1 or others or isinstance(firsts[0], int):
        return 1, None
    limits = program.range_constraints.get(firsts[0].node.expr)
    if limits is None:
        return 1, LARGEST_BATCH
    lower = int(limits.lower)
    most = LARGEST_BATCH if limits.upper > LARGEST_BATCH else int(limits.upper)
    return max(1, lower), max(most, lower, 1)


def trial_shapes(program: Any, values: Mapping[str, Any]) -> list[list[int]]:
    """Shapes of inputs that the program takes: those with which it was traced, or the least."""
    import torch
    from torch.utils import _pytree as pytree

    rows = [values[row.arg.name] for row in program.graph_signature.input_specs if row.arg.name in values and row.kind.name == "USER_INPUT"]
    rows = [value for value in rows if hasattr(value, "shape")]
    examples = [one for one in pytree.tree_leaves(program.example_inputs) if isinstance(one, torch.Tensor)] if program.example_inputs else []
    if len(examples) == len(rows):
        return [list(one.shape) for one in examples]
    return [[least_size(program, size) for size in value.shape] for value in rows]


def least_size(program: Any, size: Any) -> int:
    if isinstance(size, int):
        return size
    return max(1, int(getattr(program.range_constraints.get(size.node.expr), "lower", 1)))
