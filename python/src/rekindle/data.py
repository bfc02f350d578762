"""Declared data: objects of stores that are in the GPU's memory when a kernel comes to them."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rekindle import dlpack, driver
from rekindle.errors import (
    DataAccessError,
    DataChangedError,
    DataError,
    DataGpuError,
    DataMemoryError,
    DataNameError,
    DataNotFoundError,
    DataSizeError,
    DataUnavailableError,
    DeclarationError,
)

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
SCHEMES = ("s3", "http", "https", "file")
# As the library numbers them.
ERRORS: dict[int, type[DataError]] = {
    1: DataNotFoundError,
    2: DataChangedError,
    3: DataSizeError,
    4: DataAccessError,
    5: DataUnavailableError,
    6: DataMemoryError,
    7: DataNameError,
    8: DataGpuError,
}


class Data:
    """`data={"weights": rekindle.Data("s3://bucket/key", dtype="float16", shape=(4096, 4096))}`."""

    def __init__(self, url: str, *, dtype: str, shape: int | tuple[int, ...], mode: str = "ro") -> None:
        if not isinstance(url, str) or urlsplit(url).scheme not in SCHEMES or url.split("://", 1)[1:] in ([], [""]):
            raise DeclarationError(f"{url!r} names no data; give s3://BUCKET/KEY, http(s)://HOST/PATH or file:///PATH")
        if dtype not in DTYPES:
            raise DeclarationError(f"{url}: dtype is {dtype!r}; give one of {', '.join(DTYPES)}")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if not shape or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape):
            raise DeclarationError(f"{url}: shape is {shape!r}; give whole numbers above 0")
        if mode != "ro":
            raise DeclarationError(f"{url}: mode is {mode!r}; give 'ro', for data that is only read")
        self.url, self.dtype, self.shape, self.mode = url, dtype, shape, mode
        self._turn = threading.Lock()
        self._array: DeviceArray | None = None

    def __repr__(self) -> str:
        return f"rekindle.Data({self.url!r}, dtype={self.dtype!r}, shape={self.shape!r})"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1] // 8

    def load(self) -> DeviceArray:
        """The array, at once: its bytes may still be on their way. It is loaded once in each process."""
        with self._turn:
            if self._array is None:
                self._array = DeviceArray.begin(self)
            self._check(self._array, wait=False)
            return self._array

    def check(self) -> None:
        """Raises why it cannot be had, if it was asked for and that is known."""
        with self._turn:
            if self._array is not None:
                self._check(self._array, wait=False)

    def _check(self, array: DeviceArray, *, wait: bool) -> None:
        try:
            array._check(wait=wait)
        except DataError:
            # The next one who wants it asks again.
            if self._array is array:
                self._array = None
            raise


class DeviceArray:
    """An array in a GPU's memory, for whatever takes `__cuda_array_interface__` or DLPack. It is not to be written to."""

    def __init__(self, data: Data, address: int, device: int) -> None:
        self.data, self.address, self.device = data, address, device
        self.shape, self.dtype, self.nbytes = data.shape, data.dtype, data.nbytes
        self._is_there = False
        self._error: tuple[type[DataError], str] | None = None
        self._turn = threading.Lock()

    @classmethod
    def begin(cls, data: Data) -> DeviceArray:
        try:
            device = driver.enter_context()
            return cls(data, driver.load(data.url, data.nbytes), device)
        except driver.DriverError as error:
            if error.code is None:
                raise DataUnavailableError(f"{data.url} can be loaded by programs in sandboxes alone: {error}") from error
            if error.code == driver.OUT_OF_MEMORY:
                sentence = f"the GPU has no room for the {data.nbytes} bytes of {data.url}; free some of its memory, or take a larger GPU"
                raise DataMemoryError(sentence) from error
            raise DataUnavailableError(f"{data.url} cannot be loaded: {error}; look at the log of the sandbox") from error

    def __repr__(self) -> str:
        return f"<{self.data.url}: {self.dtype} {self.shape} at {self.address:#x}>"

    def wait(self) -> DeviceArray:
        """Returns when all of it is there; raises why it cannot be had. Nothing on the GPU needs this."""
        self.data._check(self, wait=True)
        return self

    def _check(self, *, wait: bool) -> None:
        if self._is_there:
            return
        if self._error is None:
            try:
                driver.enter_context()
                number, sentence = driver.state(self.address, wait=wait)
            except driver.DriverError as error:
                raise DataUnavailableError(f"{self.data.url} cannot be asked for: {error}; look at the log of the sandbox") from error
            self._note(number, sentence)
        if self._error is not None:
            kind, sentence = self._error
            raise kind(sentence)

    def _note(self, number: int, sentence: str) -> None:
        with self._turn:
            self._is_there = number == 0
            if number > 0 and self._error is None:
                self._error = ERRORS.get(number, DataError), sentence

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
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self.data.url} is given as it lies on the GPU; copy it there")
        code, bits, _ = DTYPES[self.dtype]
        return dlpack.capsule(self, self.address, self.device, (code, bits), self.shape)

    def copy_to_host(self) -> numpy.ndarray[Any, Any]:
        """Its contents, once they are there."""
        import numpy

        self.wait()
        array = numpy.empty(self.shape, self.dtype)
        driver.enter_context()
        driver.copy_to_host(array.ctypes.data, self.address, self.nbytes)
        return array
