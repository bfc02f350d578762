"""Where the tensors of a torch module are, and tensors in their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def slots(model: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, dictionary and key of each: parameters, buffers, and tensors that modules have as plain attributes."""
    import torch

    for prefix, module in model.named_modules():
        for place in (module._parameters, module._buffers, vars(module)):
            for key, tensor in place.items():
                if isinstance(tensor, torch.Tensor):
                    yield f"{prefix}.{key}".lstrip("."), place, key


def tensors(model: Any) -> dict[str, Any]:
    return {name: place[key] for name, place, key in slots(model)}


def put(model: Any, found: dict[str, Any]) -> None:
    """The tensors take the places of those that have their names."""
    import torch

    for name, place, key in list(slots(model)):
        is_parameter = isinstance(place[key], torch.nn.Parameter)
        place[key] = torch.nn.Parameter(found[name], requires_grad=False) if is_parameter else found[name]
