"""A function of the driver's interface, as it is told to.

make     MODEL RESERVE     a model of so many MB, brought to the GPU, and as many MB as it might need in buffers of 16 MB
request  MB                uses so many MB of those, and says seconds
first    MB TIMES          allocates so many MB and launches a kernel that is given them, twice: seconds of allocation, first and second
                           launch with its end, each TIMES times
launches COUNT             seconds of each of so many launches that are not waited for
up       MB TIMES          copies so many MB from pageable memory, again and again: seconds of each
"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/features"))

from gpu import Module, call, open_device  # noqa: E402
from lines import obey  # noqa: E402

MB = 1 << 20
PART = 16 * MB

KERNEL = """
extern "C" __global__ void add(unsigned *words, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) words[at] += 1;
}
"""


class Function:
    def __init__(self):
        open_device()
        self.module = Module(KERNEL)
        self.small = int(call("cuMemAlloc", 4096))
        self.add(self.small)

    def add(self, address):
        self.module.add(4, 256, np.uint64(address), 1024)

    def timed(self, do):
        began = time.perf_counter()
        do()
        call("cuCtxSynchronize")
        return time.perf_counter() - began

    def make(self, model, reserve):
        words = np.zeros(model * MB // 4, np.uint32)
        self.model = int(call("cuMemAlloc", words.nbytes))
        call("cuMemcpyHtoD", self.model, words.ctypes.data, words.nbytes)
        self.reserve = [int(call("cuMemAlloc", PART)) for _ in range(reserve * MB // PART)]
        call("cuCtxSynchronize")
        return {}

    def request(self, used):
        parts = self.reserve[: used * MB // PART]
        return self.timed(lambda: [self.add(part) for part in [self.model, *parts]])

    def first(self, size, times):
        rows = {"allocate": [], "first": [], "second": []}
        for _ in range(times):
            began = time.perf_counter()
            buffer = int(call("cuMemAlloc", size * MB))
            rows["allocate"].append(time.perf_counter() - began)
            for which in ("first", "second"):
                rows[which].append(self.timed(lambda buffer=buffer: self.add(buffer)))
            call("cuMemFree", buffer)
        return rows

    def launches(self, count):
        took = []
        for _ in range(5):
            took.append(self.timed(lambda: [self.add(self.small) for _ in range(count)]) / count)
        return took

    def up(self, size, times):
        words = np.random.default_rng(1).random(size * MB // 4, np.float32)
        buffer = int(call("cuMemAlloc", words.nbytes))
        took = [self.timed(lambda: call("cuMemcpyHtoD", buffer, words.ctypes.data, words.nbytes)) for _ in range(times + 1)]
        call("cuMemFree", buffer)
        return took[1:]


obey(Function())
