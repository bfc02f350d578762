"""Graphs of torch.fx's: what they write to, on which device they make tensors, and their text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rekindle.converting.made import ConvertError


def nodes(module: Any) -> Iterator[Any]:
    """Of the graph, and of those within it."""
    yield from module.graph.nodes
    for _, child in module.named_children():
        if hasattr(child, "graph"):
            yield from nodes(child)


def place(graph: Any, device: str) -> None:
    """Has what the graph makes lie on the device, wherever it was traced; what would look for the old one is left out."""
    import torch
    from torch.fx.node import map_aggregate

    wanted = torch.device(device)
    for node in [*nodes(graph.owning_module)]:
        if node.op == "call_function" and "_assert_tensor_metadata" in str(node.target) and not node.users:
            node.graph.erase_node(node)
            continue
        node.args = map_aggregate(node.args, lambda one: wanted if isinstance(one, torch.device) else one)
        node.kwargs = map_aggregate(node.kwargs, lambda one: wanted if isinstance(one, torch.device) else one)
    for module in graph.owning_module.modules():
        if hasattr(module, "recompile"):
            module.recompile()


def placeholders_written(module: Any) -> set[str]:
    """Views and aliases of an argument are followed; of a graph within it, all that is given to one that writes counts."""
    roots: dict[Any, set[str]] = {}
    found: set[str] = set()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            roots[node] = {node.name}
        if node.op != "call_function":
            continue
        schema = getattr(node.target, "_schema", None)
        given = roots_of([*node.args, *node.kwargs.values()], roots)
        if schema is None:
            children = [getattr(module, one.target) for one in node.all_input_nodes if one.op == "get_attr"]
            if any(hasattr(child, "graph") and placeholders_written(child) for child in children):
                found |= given
            roots[node] = given
            continue
        for at, argument in enumerate(schema.arguments):
            value = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                found |= roots_of(value, roots)
        # Its schema does not say that running statistics are written to in training.
        if "batch_norm" in str(node.target) and len(node.args) > 5 and node.args[5] is True:
            found |= roots_of(node.args[3:5], roots)
        roots[node] = given if any(result.alias_info is not None for result in schema.returns) else set()
    return found


def roots_of(value: Any, roots: Mapping[Any, set[str]]) -> set[str]:
    """The graph's arguments that a value may be a view of."""
    if isinstance(value, list | tuple):
        return {name for one in value for name in roots_of(one, roots)}
    return roots.get(value, set()) if hasattr(value, "op") else set()


def text(module: Any) -> str:
    """The graph as a class, after those within it."""
    from torch.fx.graph_module import _format_import_block
    from torch.package.importer import sys_importer

    names: dict[str, Any] = {}
    classes: list[str] = []

    def add(module: Any, name: str) -> None:
        fields = []
        for key, child in module.named_children():
            if not hasattr(child, "graph"):
                raise ConvertError(f"the program calls {type(child).__name__}, which is no graph; export it without")
            add(child, f"{name}_{key}")
            fields.append(f"        self.{key} = {name}_{key}()")
        held = [node.target for node in module.graph.nodes if node.op == "get_attr" and not hasattr(getattr(module, node.target), "graph")]
        if held:
            raise ConvertError(f"the program has {held[0]!r} within itself, which is no weight; export it by torch.export.export")
        code = module.graph.python_code("self")
        names.update(code.globals)
        body = "\n".join(f"    {line}" if line.strip() else "" for line in code.src.strip().splitlines())
        body = re.sub(r"def forward\(", "def __call__(", body, count=1)
        setup = ["    def __init__(self):", *fields, ""] if fields else []
        classes.append("\n".join([f"class {name}:", *setup, body, ""]))

    add(module, "Graph")
    return "\n".join([_format_import_block(names, sys_importer), "", *classes])
