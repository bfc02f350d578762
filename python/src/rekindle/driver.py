"""Rekindle's own functions of the driver library, which programs in sandboxes have beside CUDA's."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
# The longest sentence that is taken.
ROOM = 4096
# Some is still to come.
LOADING = -1
# How many times of waiting are asked for at once.
WAITS = 64


class DriverError(Exception):
    """A call that failed, with CUDA's number for it; none if there is no such library here."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


@functools.cache
def library() -> Any:
    """In a sandbox it is Rekindle's."""
    try:
        opened = ctypes.CDLL(LIBRARY)
        opened.rekindleDataLoad.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        opened.rekindleDataState.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
        opened.rekindleDataOpen.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
        opened.rekindleDataDumped.argtypes = opened.rekindleDataState.argtypes
        answer: list[Any] = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
        opened.rekindleDataDump.argtypes = [ctypes.c_uint64, ctypes.c_void_p, *answer]
        opened.rekindleDataWaits.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        opened.rekindleDataRead.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *answer]
        opened.rekindleExchangePut.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint32, *answer]
        opened.rekindleExchangeGet.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, *answer]
        opened.rekindleExchangeDrop.argtypes = [ctypes.c_char_p, ctypes.c_int, *answer]
        opened.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        opened.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
        opened.cuMemFree_v2.argtypes = [ctypes.c_uint64]
        opened.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
    except (OSError, AttributeError) as error:
        raise DriverError(f"{LIBRARY} is not Rekindle's ({error})", None) from error
    return opened


class Told(Exception):
    """What the memory daemon says is wrong: its number, and a sentence."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number


def call(name: str, *arguments: Any) -> None:
    code = getattr(library(), name)(*arguments)
    if code:
        raise DriverError(f"{name} failed with the CUDA error {code}", code)


def enter_context() -> int:
    """The device of this thread's context, which is the first one's primary context if it has none."""
    current, device = ctypes.c_void_p(), ctypes.c_int()
    call("cuInit", 0)
    call("cuCtxGetCurrent", ctypes.byref(current))
    if not current:
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(current), device)
        call("cuCtxSetCurrent", current)
    call("cuCtxGetDevice", ctypes.byref(device))
    return device.value


def enter_active_context() -> bool:
    """Whether this thread has a context now: its own, or the first device's primary one if that is in use. None is made."""
    current, device, flags, active = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    call("cuCtxGetCurrent", ctypes.byref(current))
    if current:
        return True
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active))
    if active:
        enter_context()
    return bool(active)


def load(url: str, size: int) -> int:
    """The address of a new buffer that the object is loaded into."""
    address = ctypes.c_uint64()
    call("rekindleDataLoad", ctypes.byref(address), url.encode(), size)
    return address.value


def open_data(url: str, size: int, *, create: bool) -> int:
    """As `load`, of a buffer that is written to and dumped. With `create` an object that is not there is zeros."""
    address = ctypes.c_uint64()
    call("rekindleDataOpen", ctypes.byref(address), url.encode(), size, create)
    return address.value


def state(address: int, *, wait: bool) -> tuple[int, str]:
    """How it stands with what is loaded there: 0, `LOADING`, or a number of what is wrong and a sentence."""
    return ask_state("rekindleDataState", address, wait)


def read(url: str, offset: int, size: int) -> tuple[int, bytes]:
    """How many bytes the object has, and some of them: at most so many, and at least one."""
    total, found, buffer = ctypes.c_uint64(), ctypes.c_size_t(size), ctypes.create_string_buffer(size)
    ask_exchange("rekindleDataRead", url.encode(), offset, buffer, ctypes.byref(found), ctypes.byref(total))
    return total.value, buffer.raw[: found.value]


def dump(address: int, stream: int) -> None:
    """Has what is there, at this place of the stream, written to its store."""
    ask_exchange("rekindleDataDump", address, stream or None)


def dumped(address: int, *, wait: bool) -> tuple[int, str]:
    """How it stands with the last dump of what is there, as `state`."""
    return ask_state("rekindleDataDumped", address, wait)


def is_used() -> bool:
    """Whether this program has loaded the library, by whatever way."""
    try:
        ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def waits() -> list[tuple[int, int, int]]:
    """When work on the GPU has waited for bytes, each time once: for what (0 declared data, 1 the image, 2
    a checkpoint that is to have memory first), when that began, in µs since
    1970, and how many µs it took. To be asked in a thread with a context."""
    found, count = (ctypes.c_uint64 * 3 * WAITS)(), ctypes.c_int(WAITS)
    call("rekindleDataWaits", found, ctypes.byref(count))
    return [(what, begin, took) for what, begin, took in found[: count.value]]


def ask_state(name: str, address: int, wait: bool) -> tuple[int, str]:
    number, sentence = ctypes.c_int(), ctypes.create_string_buffer(ROOM)
    call(name, address, wait, ctypes.byref(number), sentence, ROOM)
    return number.value, sentence.value.decode(errors="replace")


def free(address: int) -> None:
    call("cuMemFree_v2", address)


def copy_to_host(to: int, address: int, size: int) -> None:
    call("cuMemcpyDtoH_v2", to, address, size)


def allocate(size: int) -> int:
    """The address of a new buffer."""
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), size)
    return address.value


def synchronize() -> None:
    """Waits for all work of the context."""
    call("cuCtxSynchronize")


def copy_to_gpu(to: int, address: int, size: int) -> None:
    call("cuMemcpyHtoD_v2", to, address, size)


def ask_exchange(name: str, *arguments: Any) -> str:
    """The text that comes of it."""
    number, text = ctypes.c_int(), ctypes.create_string_buffer(ROOM)
    call(name, *arguments, ctypes.byref(number), text, ROOM)
    said = text.value.decode(errors="replace")
    if number.value:
        raise Told(number.value, said)
    return said


def put(address: int, size: int, expiry: float, uses: int) -> str:
    """The name under which a copy of the range is kept."""
    return ask_exchange("rekindleExchangePut", address, size, round(expiry * 1000), uses)


def get(name: str, size: int) -> int:
    """Where what has this name is mapped."""
    address = ctypes.c_uint64()
    ask_exchange("rekindleExchangeGet", ctypes.byref(address), name.encode(), size)
    return address.value


def drop(name: str, *, use_only: bool) -> None:
    ask_exchange("rekindleExchangeDrop", name.encode(), use_only)
