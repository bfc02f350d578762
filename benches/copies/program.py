"""Copies between pageable memory and the GPU, by size: the median of many, in seconds, as one line of JSON.

`up` and `down` are synchronous copies; `up, waited for` and `down, waited for` are asynchronous ones on a stream with a wait for
it, as torch makes them. The argument is the largest size in bytes.
"""

import ctypes
import json
import statistics
import sys
import time

SMALLEST = 4096
WARM = 3
STREAM_NON_BLOCKING = 1


class Cuda:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(self.stream), STREAM_NON_BLOCKING)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} gave CUDA error {code}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address


def turns(size):
    return 300 if size <= 1 << 20 else 40 if size <= 16 << 20 else 8


def main(largest):
    cuda = Cuda()
    device, stream = cuda.allocate(largest), cuda.stream
    pattern = bytes(range(251)) * (largest // 251 + 1)
    host, back = ctypes.create_string_buffer(pattern, largest + 252), ctypes.create_string_buffer(largest)

    def waited(name, *arguments):
        cuda.call(name, *arguments, stream)
        cuda.call("cuStreamSynchronize", stream)

    # What both sides copy through is there then.
    cuda.call("cuMemcpyHtoD_v2", device, host, ctypes.c_size_t(largest))
    cuda.call("cuMemcpyDtoH_v2", back, device, ctypes.c_size_t(largest))
    rows, size = {}, SMALLEST
    while size <= largest:
        count = ctypes.c_size_t(size)
        ways = {
            "up": lambda: cuda.call("cuMemcpyHtoD_v2", device, host, count),
            "down": lambda: cuda.call("cuMemcpyDtoH_v2", back, device, count),
            "up, waited for": lambda: waited("cuMemcpyHtoDAsync_v2", device, host, count),
            "down, waited for": lambda: waited("cuMemcpyDtoHAsync_v2", back, device, count),
        }
        for way, copy in ways.items():
            took = []
            for turn in range(turns(size) + WARM):
                began = time.perf_counter()
                copy()
                if turn >= WARM:
                    took.append(time.perf_counter() - began)
            rows.setdefault(way, {})[size] = statistics.median(took)
        if back.raw[:size] != host.raw[:size]:
            raise RuntimeError(f"{size} bytes came back as others")
        size *= 4
    print(json.dumps(rows))


main(int(sys.argv[1]))
