"""What is declared of inputs and outputs: types by NumPy's names, which the protocol has its own for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rekindle.errors import DeclarationError

# Texts have no size of their own. NumPy has no bfloat16: values are float32 in arrays, and two bytes each on their way.
DATATYPES = {
    "bool": "BOOL",
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "bytes": "BYTES",
}


@dataclass(frozen=True)
class TensorSpec:
    """`TensorSpec("float32", (None, 3, 224, 224))`: a size that is None may be any."""

    dtype: str
    shape: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DATATYPES:
            raise DeclarationError(f"a tensor's dtype is {self.dtype!r}; give one of {', '.join(DATATYPES)}")
        if isinstance(self.shape, str) or not isinstance(self.shape, Sequence):
            raise DeclarationError(f"a tensor's shape is {self.shape!r}; give a tuple of sizes, None for one that may be any")
        object.__setattr__(self, "shape", tuple(self.shape))
        for size in self.shape:
            if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
                raise DeclarationError(f"a tensor's shape is {self.shape!r}; its sizes are whole numbers, or None for one that may be any")

    @property
    def datatype(self) -> str:
        """As the protocol calls it."""
        return DATATYPES[self.dtype]

    def described(self) -> list[int]:
        """The shape as the protocol has it."""
        return [-1 if size is None else size for size in self.shape]

    def fits(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.shape) and all(wanted in (None, size) for wanted, size in zip(self.shape, shape, strict=True))
