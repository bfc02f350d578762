"""Models whose tensors are declared data: they lie where the object does, and are made anew if that had to be asked for anew."""

from __future__ import annotations

from typing import Any

from rekindle.data import Data
from rekindle.inference.placed import Placed


class Bound:
    """`bind(tensors)` of a subclass takes them by name; until then it has none."""

    def __init__(self, data: Data, placed: dict[str, Placed], device: str) -> None:
        self.data, self.placed, self.device = data, placed, device
        self.array: Any = None

    def bind(self, tensors: dict[str, Any]) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """Holds no tensor any more."""
        raise NotImplementedError

    def take(self, memory: Any) -> None:
        """The object's bytes, a tensor of torch's."""
        self.bind({name: row.view(memory) for name, row in self.placed.items()})

    def current(self) -> None:
        """Before each use. It waits for nothing: kernels wait for the bytes."""
        import torch

        array = self.data.load()
        if array is not self.array:
            self.take(torch.from_dlpack(array) if self.device != "cpu" else torch.from_numpy(array.copy_to_host()))
            self.array = array

    def try_out(self) -> None:
        """Uses it once, with whatever numbers it has."""
        raise NotImplementedError

    def rehearse(self) -> None:
        """Before the image: with zeros for weights, so that libraries are set up and kernels are loaded. They are not in the image."""
        import torch

        self.take(torch.zeros(self.data.nbytes, dtype=torch.uint8, device=self.device))
        self.try_out()
        self.forget()
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
