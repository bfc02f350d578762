"""Copies 16 MB of pinned memory to the GPU again and again, four such copies always under way; prints now and then how many bytes it has copied."""

import ctypes
import itertools
import time

SIZE, UNDER_WAY, PAUSE_S = 16 << 20, 4, 0.1
NON_BLOCKING, NO_TIMES = 1, 2

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise RuntimeError(f"{name}: {code}")


def made(kind, name, *arguments):
    value = kind()
    call(name, ctypes.byref(value), *arguments)
    return value


call("cuInit", 0)
device = made(ctypes.c_int, "cuDeviceGet", 0)
call("cuCtxSetCurrent", made(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", device))
to = made(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(UNDER_WAY * SIZE))
source = made(ctypes.c_void_p, "cuMemHostAlloc", ctypes.c_size_t(UNDER_WAY * SIZE), 0)
stream = made(ctypes.c_void_p, "cuStreamCreate", NON_BLOCKING)
events = [made(ctypes.c_void_p, "cuEventCreate", NO_TIMES) for _ in range(UNDER_WAY)]
last = 0.0
for number in itertools.count():
    place = number % UNDER_WAY
    if number >= UNDER_WAY:
        call("cuEventSynchronize", events[place])
    here = ctypes.c_uint64(to.value + place * SIZE)
    call("cuMemcpyHtoDAsync_v2", here, ctypes.c_void_p(source.value + place * SIZE), ctypes.c_size_t(SIZE), stream)
    call("cuEventRecord", events[place], stream)
    if time.monotonic() - last > PAUSE_S:
        print(number * SIZE, flush=True)
        last = time.monotonic()
