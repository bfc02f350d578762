"""Files of safetensors: a header that says where each tensor lies, and the tensors, which are views of one array on the GPU."""

from __future__ import annotations

import ctypes
import json
import math
import operator
from dataclasses import dataclass
from typing import Any

from rekindle import driver
from rekindle.device_array import DTYPES, DeviceArray
from rekindle.errors import DATA_ERRORS, DataError, DataSizeError, DataUnavailableError

# As the format names them.
NAMES = {
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "BOOL": "bool",
}
# Of the number that says how long the header is, before it.
BEFORE = 8
# What is read at once, and the longest header that the format allows for.
PIECE, LONGEST = 48 << 10, 100_000_000


class TensorView(DeviceArray):
    """A tensor in a file that lies on the GPU, which it holds there."""

    def __init__(self, base: DeviceArray, name: str, dtype: str, shape: tuple[int, ...], offset: int) -> None:
        super().__init__(name, dtype, shape, base.address + offset, base.device)
        self.base = base

    def wait(self) -> TensorView:
        self.base.wait()
        return self

    def __del__(self) -> None:
        """The memory is the file's."""


@dataclass(frozen=True)
class Index:
    """Where each tensor lies: its dtype, its shape, and the first of its bytes in the file."""

    total: int
    header: bytes
    tensors: dict[str, tuple[str, tuple[int, ...], int]]

    @classmethod
    def read(cls, url: str) -> Index:
        total, text = ask(url, 0, PIECE)
        length = int.from_bytes(text[:BEFORE], "little")
        if len(text) < BEFORE or length > min(LONGEST, total - BEFORE):
            raise wrong(url, f"its first bytes say that its header has {length} bytes, and it has {total}")
        while len(text) < BEFORE + length:
            again, more = ask(url, len(text), min(PIECE, BEFORE + length - len(text)))
            if again != total or not more:
                raise wrong(url, "it was written while it was read")
            text += more
        return cls.of(url, total, text[: BEFORE + length])

    @classmethod
    def of(cls, url: str, total: int, header: bytes) -> Index:
        try:
            rows = json.loads(header[BEFORE:])
            found = {name: place(row) for name, row in rows.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise wrong(url, f"its header cannot be read ({error})") from error
        tensors = {}
        for name, (dtype, shape, start, end) in found.items():
            if dtype not in NAMES:
                raise wrong(url, f"its tensor {name!r} has the dtype {dtype!r}, and {', '.join(NAMES)} are known")
            size = math.prod(shape) * DTYPES[NAMES[dtype]][1] // 8
            if min(shape, default=0) < 0 or start < 0 or end - start != size or len(header) + end > total:
                raise wrong(url, f"its tensor {name!r} is said to have the bytes {start} to {end}, which it cannot")
            tensors[name] = (NAMES[dtype], shape, len(header) + start)
        return cls(total, header, tensors)

    def views(self, base: DeviceArray) -> dict[str, DeviceArray]:
        return {name: TensorView(base, name, *row) for name, row in self.tensors.items()}

    def is_of(self, base: DeviceArray) -> bool:
        """Whether this is the header of what is on the GPU."""
        buffer = ctypes.create_string_buffer(len(self.header))
        driver.copy_to_host(ctypes.addressof(buffer), base.address, len(self.header))
        return buffer.raw == self.header


def place(row: Any) -> tuple[str, tuple[int, ...], int, int]:
    start, end = row["data_offsets"]
    return str(row["dtype"]), tuple(operator.index(size) for size in row["shape"]), operator.index(start), operator.index(end)


def ask(url: str, offset: int, size: int) -> tuple[int, bytes]:
    try:
        driver.enter_context()
        return driver.read(url, offset, size)
    except driver.Told as told:
        raise DATA_ERRORS.get(told.number, DataError)(str(told)) from told
    except driver.DriverError as error:
        if error.code is None:
            raise DataUnavailableError(f"{url} can be loaded by programs in sandboxes alone: {error}") from error
        raise DataUnavailableError(f"{url} cannot be read: {error}; look at the log of the sandbox") from error


def wrong(url: str, why: str) -> DataError:
    return DataSizeError(f"{url} is no file of safetensors: {why}; put one there, or declare dtype and shape")
