"""Declared data: objects of stores that are in the GPU's memory when a kernel comes to them."""

from __future__ import annotations

import threading
from typing import Self
from urllib.parse import urlsplit

from rekindle import driver
from rekindle.device_array import DTYPES, DeviceArray, size_of
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
        self._array: LoadedArray | None = None

    def __repr__(self) -> str:
        return f"rekindle.Data({self.url!r}, dtype={self.dtype!r}, shape={self.shape!r})"

    @property
    def nbytes(self) -> int:
        return size_of(self.dtype, self.shape)

    def load(self) -> LoadedArray:
        """The array, at once: its bytes may still be on their way. It is loaded once in each process."""
        with self._turn:
            if self._array is None:
                self._array = LoadedArray.begin(self)
            self._check(self._array, wait=False)
            return self._array

    def check(self) -> None:
        """Raises why it cannot be had, if it was asked for and that is known."""
        with self._turn:
            if self._array is not None:
                self._check(self._array, wait=False)

    def _check(self, array: LoadedArray, *, wait: bool) -> None:
        try:
            array._check(wait=wait)
        except DataError:
            # The next one who wants it asks again.
            if self._array is array:
                self._array = None
            raise


class LoadedArray(DeviceArray):
    """Declared data, whose bytes may still be on their way."""

    def __init__(self, data: Data, address: int, device: int) -> None:
        super().__init__(data.url, data.dtype, data.shape, address, device)
        self.data = data
        self._is_there = False
        self._error: tuple[type[DataError], str] | None = None
        self._turn = threading.Lock()

    @classmethod
    def begin(cls, data: Data) -> LoadedArray:
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

    def wait(self) -> Self:
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
