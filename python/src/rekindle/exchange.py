"""Arrays that functions hand on to each other where they lie, on the GPU.

Source: StreamBox (ATC 2024), section 6, PUT and GET.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rekindle import arrays, dlpack, driver
from rekindle.address import RUN
from rekindle.device_array import DTYPES, DeviceArray, size_of
from rekindle.errors import (
    RefAccessError,
    RefError,
    RefGpuError,
    RefMemoryError,
    RefNodeError,
    RefNotFoundError,
    RefUnavailableError,
    SerializationError,
)

# Seconds after its last use.
EXPIRY = 300.0
# The file in a sandbox's run directory that says whose arrays its programs have.
OWNER = "owner"
# What an owner begins with that is one sandbox alone.
ALONE = "sandbox:"
# As the library numbers them.
ERRORS: dict[int, type[RefError]] = {
    1: RefNotFoundError,
    4: RefAccessError,
    5: RefUnavailableError,
    6: RefMemoryError,
    8: RefGpuError,
    9: RefNodeError,
}
NAMES = {(code, bits): name for name, (code, bits, _) in DTYPES.items()}
TYPESTRS = {f"{letter}{bits // 8}": name for name, (_, bits, letter) in DTYPES.items() if letter}


@dataclass(frozen=True)
class Ref:
    """An array that was put: small, and sent as it is. `given`: whoever is called with it has the array in its place."""

    id: str
    dtype: str
    shape: tuple[int, ...]
    given: bool = False

    @property
    def nbytes(self) -> int:
        return size_of(self.dtype, self.shape)

    def drop(self) -> None:
        """It is not needed any more: nobody gets it from now on. Those who have it keep it."""
        let_go(self, use_only=False)


@dataclass(frozen=True)
class Source:
    """Where an array lies that is put; `owner` keeps it there."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    on_gpu: bool
    owner: object

    @property
    def nbytes(self) -> int:
        return size_of(self.dtype, self.shape)


def place() -> str | None:
    """Whose arrays this program has, and where: programs that say the same can give each other arrays. None outside of a sandbox."""
    directory = os.environ.get(RUN)
    try:
        return Path(directory, OWNER).read_text() if directory else None
    except OSError:
        return None


def is_alone(place: str | None) -> bool:
    """Whether nobody else has its arrays."""
    return place is None or place.rpartition(" ")[2].startswith(ALONE)


def put(array: Any, *, expiry: float = EXPIRY) -> Ref:
    """Keeps a copy of an array on this GPU for other functions of the app or tenant, until `expiry` seconds after its last use.

    It waits for the GPU's work. Raises a `RefError`, or a `SerializationError` for what is no such array.
    """
    return keep(find(array), expiry, 0)


def get(ref: Ref) -> DeviceArray:
    """The array, which can only be read, mapped where it lies if that is this GPU. It is there for as long as somebody has it."""
    with told(f"{ref} cannot be had"):
        device = driver.enter_context()
        address = driver.get(ref.id, ref.nbytes)
    return DeviceArray(f"Ref({ref.id})", ref.dtype, ref.shape, address, device, read_only=True)


def keep(source: Source, expiry: float, uses: int) -> Ref:
    size = size_of(source.dtype, source.shape)
    if not size:
        raise SerializationError(f"an array of shape {source.shape} has no elements to put; hand it on as an argument")
    with told("an array cannot be put"):
        driver.enter_context()
        if source.on_gpu:
            name = driver.put(source.address, size, expiry, uses)
        else:
            address = driver.allocate(size)
            try:
                driver.copy_to_gpu(address, source.address, size)
                name = driver.put(address, size, expiry, uses)
            finally:
                driver.free(address)
    return Ref(name, source.dtype, source.shape)


def end_uses(refs: list[Ref]) -> None:
    """Whoever was given these has no use for them any more. What cannot be told of goes when it expires."""
    for ref in refs:
        with contextlib.suppress(RefError):
            let_go(ref, use_only=True)


def drop_all(refs: list[Ref]) -> None:
    """Nobody needs these any more. What cannot be told of goes when it expires."""
    for ref in refs:
        with contextlib.suppress(RefError):
            ref.drop()


def address_of(data: memoryview) -> int:
    """Where bytes lie; for as long as they are there."""
    import numpy

    return int(numpy.frombuffer(data, numpy.uint8).ctypes.data)


def let_go(ref: Ref, *, use_only: bool) -> None:
    with told(f"{ref} cannot be dropped"):
        driver.enter_context()
        driver.drop(ref.id, use_only=use_only)


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """What is wrong, as one of this package's errors."""
    try:
        yield
    except driver.Told as said:
        raise ERRORS.get(said.number, RefError)(str(said)) from None
    except driver.DriverError as error:
        if error.code is None:
            raise RefUnavailableError(f"{what}, for arrays are handed on by programs in sandboxes alone: {error}") from error
        if error.code == driver.OUT_OF_MEMORY:
            raise RefMemoryError(f"{what}, for the GPU has no room for it; free some of its memory") from error
        raise RefGpuError(f"{what}: {error}; look at the log of the sandbox") from error


def find(array: Any) -> Source:
    """Where an array lies, on the GPU or the host."""
    found = find_on_gpu(array)
    if found is not None:
        return found
    host = arrays.as_array(array)
    if host is None:
        raise SerializationError(
            f"a value of type {type(array).__qualname__} is no array; put one that has DLPack or __cuda_array_interface__, or NumPy's"
        )
    if host.dtype.name not in DTYPES or not host.dtype.isnative:
        raise SerializationError(f"an array of type {host.dtype} cannot be put; convert it to one of {', '.join(DTYPES)}")
    import numpy

    host = numpy.ascontiguousarray(host).reshape(host.shape)
    return Source(host.ctypes.data, host.dtype.name, host.shape, False, host)


def find_on_gpu(array: Any) -> Source | None:
    """Where it lies on a GPU; none if it does not."""
    if isinstance(array, DeviceArray):
        return Source(array.address, array.dtype, array.shape, True, array)
    if type(array).__module__.startswith("torch") and hasattr(array, "detach"):
        array = array.detach()
    if hasattr(array, "__dlpack_device__"):
        return find_by_dlpack(array) if array.__dlpack_device__()[0] == dlpack.CUDA else None
    interface = getattr(array, "__cuda_array_interface__", None)
    return None if interface is None else find_by_interface(array, interface)


def find_by_dlpack(array: Any) -> Source:
    capsule = array.__dlpack__()
    view = dlpack.view(capsule)
    name = NAMES.get(view.kind) if view.lanes == 1 else None
    if name is None:
        raise SerializationError(f"an array of DLPack's type {view.kind} cannot be put; convert it to one of {', '.join(DTYPES)}")
    check_order(view.shape, view.strides, 1)
    return Source(view.address, name, view.shape, True, capsule)


def find_by_interface(array: Any, interface: dict[str, Any]) -> Source:
    order, name = interface["typestr"][0], TYPESTRS.get(interface["typestr"][1:])
    if name is None or order == ">":
        raise SerializationError(f"an array of type {interface['typestr']} cannot be put; convert it to one of {', '.join(DTYPES)}")
    shape = tuple(interface["shape"])
    check_order(shape, interface.get("strides"), DTYPES[name][1] // 8)
    return Source(interface["data"][0], name, shape, True, array)


def check_order(shape: tuple[int, ...], strides: tuple[int, ...] | None, step: int) -> None:
    """`step` is the stride of neighbours."""
    if strides is None or not math.prod(shape):
        return
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            raise SerializationError(f"an array of shape {shape} with strides {tuple(strides)} is not in C order; put a contiguous copy")
        step *= size
