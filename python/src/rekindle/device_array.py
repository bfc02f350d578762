"""Arrays in a GPU's memory, as libraries take them."""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rekindle import dlpack, driver
from rekindle.errors import SerializationError

if TYPE_CHECKING:
    import numpy

# By their names: DLPack's code and bits, and NumPy's letter; there is none for bfloat16.
DTYPES: dict[str, tuple[int, int, str]] = {
    **{f"int{bits}": (0, bits, "i") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits, "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits, "f") for bits in (16, 32, 64)},
    "bfloat16": (4, 16, ""),
    "complex64": (5, 64, "c"),
    "complex128": (5, 128, "c"),
    "bool": (6, 8, "b"),
}


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes."""
    return math.prod(shape) * DTYPES[dtype][1] // 8


def numpy_type(dtype: str) -> str:
    """The name, if NumPy knows it."""
    if not DTYPES[dtype][2]:
        raise SerializationError(f"an array of {dtype} cannot be one of NumPy's, which knows no such type; convert it to float32 on the GPU")
    return dtype


@dataclass(frozen=True)
class Contents:
    """An array of a GPU's that is sent by its bytes, and lies on the receiver's GPU again."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def array(self) -> numpy.ndarray[Any, Any]:
        """The same as NumPy's."""
        import numpy

        return numpy.frombuffer(self.data, numpy_type(self.dtype)).reshape(self.shape)


class DeviceArray:
    """An array in a GPU's memory, for whatever takes `__cuda_array_interface__` or DLPack. It is not to be written to."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...], address: int, device: int, *, read_only: bool = False) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self.address, self.device, self.read_only = address, device, read_only
        self.nbytes = size_of(dtype, shape)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype} {self.shape} at {self.address:#x}>"

    def wait(self) -> Self:
        """Returns when all of it is there. Nothing on the GPU needs this."""
        return self

    def __del__(self) -> None:
        # Whatever took the array holds it, so that nobody has the address any more.
        if not sys.is_finalizing():
            with contextlib.suppress(driver.DriverError):
                driver.free(self.address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        _, bits, letter = DTYPES[self.dtype]
        if not letter:
            raise AttributeError(f"{self.dtype} has no name in this interface; use DLPack")
        return {
            "shape": self.shape,
            "typestr": f"{'|' if bits == 8 else '<'}{letter}{bits // 8}",
            "data": (self.address, self.read_only),
            "version": 3,
            "strides": None,
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self.name} is given as it lies on the GPU; copy it there")
        code, bits, _ = DTYPES[self.dtype]
        return dlpack.capsule(self, self.address, self.device, (code, bits), self.shape)

    def copy_to_host(self) -> numpy.ndarray[Any, Any]:
        """Its contents, once they are there."""
        import numpy

        self.wait()
        array = numpy.empty(self.shape, numpy_type(self.dtype))
        driver.enter_context()
        driver.copy_to_host(array.ctypes.data, self.address, self.nbytes)
        return array
