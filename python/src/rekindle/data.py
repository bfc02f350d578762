"""Declared data: objects of stores that are in the GPU's memory when a kernel comes to them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import quote, urlsplit

from rekindle import driver, tracing
from rekindle.device_array import DTYPES, DeviceArray, size_of
from rekindle.errors import DATA_ERRORS, DataChangedError, DataError, DataMemoryError, DataUnavailableError, DeclarationError
from rekindle.safetensors import Index

# What stays as it is where a URL stands in a header or a command.
PLAIN = "%/:@!$&'()*+;=[]"
SCHEMES = ("s3", "gs", "az", "abfs", "abfss", "http", "https", "file")


class Data:
    """`data={"weights": rekindle.Data("s3://bucket/key", dtype="float16", shape=(4096, 4096))}`.

    With `format="safetensors"` there is no dtype and no shape, and `load()` gives a dictionary of arrays by their names.

    With `mode="rw"` the array is written to, and `dump()` has the store get it; with `create` an object that is not there is zeros.

    With `override` a call can name another object for it: with True one of the same bucket or host, else one whose URL begins
    with this text, or one of these.
    """

    def __init__(
        self,
        url: str,
        *,
        dtype: str | None = None,
        shape: int | tuple[int, ...] | None = None,
        mode: str = "ro",
        create: bool = False,
        format: str | None = None,
        override: bool | str | Sequence[str] = False,
    ) -> None:
        check_url(url)
        if format not in (None, "safetensors"):
            raise DeclarationError(f"{url}: format is {format!r}; give 'safetensors', or none for numbers in C order")
        if format and (dtype is not None or shape is not None or mode != "ro"):
            raise DeclarationError(f"{url}: a file of safetensors says itself what is in it, and is only read; give no dtype, shape or mode")
        if format:
            dtype, shape = "uint8", 1
        if dtype not in DTYPES:
            raise DeclarationError(f"{url}: dtype is {dtype!r}; give one of {', '.join(DTYPES)}")
        shape = (shape,) if isinstance(shape, int) else tuple(shape or ())
        if not shape or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape):
            raise DeclarationError(f"{url}: shape is {shape!r}; give whole numbers above 0")
        if mode not in ("ro", "rw"):
            raise DeclarationError(f"{url}: mode is {mode!r}; give 'ro', for data that is only read, or 'rw', for data that is dumped")
        if create and mode != "rw":
            raise DeclarationError(f"{url}: create is for data that is dumped; give mode='rw' too")
        self.url, self.dtype, self.shape, self.mode, self.create = url, dtype, shape, mode, create
        self.format = format
        self.overrides = beginnings(url, override)
        if self.overrides and mode != "ro":
            raise DeclarationError(f"{url}: override is for data that is only read; leave mode='rw' out")
        self._turn = threading.Lock()
        self._array: LoadedArray | None = None
        # What of a file of safetensors says what is in it.
        self._index: Index | None = None

    def __repr__(self) -> str:
        if self.format:
            return f"rekindle.Data({self.url!r}, format={self.format!r})"
        return f"rekindle.Data({self.url!r}, dtype={self.dtype!r}, shape={self.shape!r})"

    @property
    def nbytes(self) -> int:
        return size_of(self.dtype, self.shape)

    def replaced(self, url: str) -> Data:
        """The same of another object."""
        if self.format:
            return Data(url, format=self.format)
        return Data(url, dtype=self.dtype, shape=self.shape)

    def drop(self) -> None:
        """Lets go of what was loaded: it goes from the GPU once nobody else has it."""
        with self._turn:
            array, self._array = self._array, None
            if array is not None:
                driver.enter_context()

    def load(self) -> Any:
        """The array, at once: its bytes may still be on their way. It is loaded once in each process."""
        with self._turn:
            if self._array is None:
                if self.format:
                    with tracing.span("data"):
                        self._index = Index.read(self.url)
                    self.shape = (self._index.total,)
                self._array = LoadedArray.begin(self)
            self._check(self._array, wait=False)
            return self._index.views(self._array) if self._index else self._array

    def check(self) -> None:
        """Raises why it cannot be had, if it was asked for and that is known."""
        with self._turn:
            if self._array is not None:
                self._check(self._array, wait=False)

    def dump(self, *, stream: int = 0) -> None:
        """Has the store get what `load()` gave, as it is after all that the stream was given before. Returns at once: `finish()`, or
        the end of the call, waits for the store. `stream` is a `CUstream`; without it, CUDA's default stream."""
        if self.mode != "rw":
            raise DeclarationError(f"{self.url} is only read; declare it with mode='rw' to dump it")
        with self._turn:
            if self._array is None:
                raise DataError(f"{self.url} was not loaded, so there is nothing to dump; load it, write to it, and dump that")
            self._check(self._array, wait=True)
            # The next one replaces what this one has written.
            self._finish(self._array)
            self._array._dump(stream)

    @property
    def is_dumping(self) -> bool:
        """The end of a dump was not waited for."""
        return self._array is not None and self._array._is_dumping

    def finish(self) -> None:
        """Returns when the store has what was dumped; raises why it has not."""
        with self._turn:
            if self._array is not None:
                self._finish(self._array)

    def _finish(self, array: LoadedArray) -> None:
        try:
            array._finish()
        except DataChangedError:
            # The next one who loads has what is there now.
            self._array = None
            raise

    def _check(self, array: LoadedArray, *, wait: bool) -> None:
        try:
            array._check(wait=wait)
        except DataError:
            # The next one who wants it asks again.
            if self._array is array:
                self._array = None
            raise


def check_url(url: str) -> None:
    if not isinstance(url, str) or urlsplit(url).scheme not in SCHEMES or url.split("://", 1)[1:] in ([], [""]):
        known = "s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, http(s)://HOST/PATH or file:///PATH"
        raise DeclarationError(f"{url!r} names no data; give {known}")


def quoted(url: str) -> str:
    """As it stands in a header."""
    return quote(url, safe=PLAIN)


def beginnings(url: str, override: bool | str | Sequence[str]) -> tuple[str, ...]:
    """How the URLs begin that a call may name in place of this one."""
    if isinstance(override, bool):
        parts = urlsplit(url)
        return (quoted(f"{parts.scheme}://{parts.netloc}/"),) if override else ()
    found = (override,) if isinstance(override, str) else tuple(override)
    for one in found:
        if not isinstance(one, str) or urlsplit(one).scheme not in SCHEMES or "/" not in one.partition("://")[2]:
            raise DeclarationError(f"{url}: override is {one!r}; give True, or how the URLs begin, such as 's3://BUCKET/models/'")
    return tuple(map(quoted, found))


class LoadedArray(DeviceArray):
    """Declared data, whose bytes may still be on their way."""

    def __init__(self, data: Data, address: int, device: int) -> None:
        super().__init__(data.url, data.dtype, data.shape, address, device)
        self.data = data
        self._is_there = self._is_dumping = False
        self._error: tuple[type[DataError], str] | None = None
        self._turn = threading.Lock()

    @classmethod
    def begin(cls, data: Data) -> LoadedArray:
        try:
            device = driver.enter_context()
            if data.mode == "rw":
                return cls(data, driver.open_data(data.url, data.nbytes, create=data.create), device)
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
        with tracing.span("data"):
            self.data._check(self, wait=True)
        return self

    def _dump(self, stream: int) -> None:
        try:
            driver.enter_context()
            driver.dump(self.address, stream)
        except driver.Told as told:
            raise DATA_ERRORS.get(told.number, DataError)(str(told)) from told
        except driver.DriverError as error:
            raise DataUnavailableError(f"{self.data.url} cannot be dumped: {error}; look at the log of the sandbox") from error
        self._is_dumping = True

    def _finish(self) -> None:
        if not self._is_dumping:
            return
        try:
            driver.enter_context()
            number, sentence = driver.dumped(self.address, wait=True)
        except driver.DriverError as error:
            raise DataUnavailableError(f"{self.data.url} cannot be asked for: {error}; look at the log of the sandbox") from error
        self._is_dumping = False
        if number > 0:
            raise DATA_ERRORS.get(number, DataError)(sentence)

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
                self._error = DATA_ERRORS.get(number, DataError), sentence
            if self._is_there and self.data._index and not self.data._index.is_of(self):
                self._is_there = False
                self._error = DataChangedError, f"{self.data.url} became another object while it was opened; load it again"
