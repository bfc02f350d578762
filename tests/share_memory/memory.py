"""A program that allocates GPU memory by name and uses it in one way after the other, as the lines of a file say.

memory.py COMMANDS     does each line of the file COMMANDS, and prints it with what came of it: `ok`, a number, or an error

alloc NAME BYTES       free NAME
allocated NAME BYTES   freed NAME       in the order of a stream
set NAME N             fills all of it with N, by the driver
launch NAME N          the same by a kernel that is given the address
up NAME N              the same by a copy from pageable memory
copy TO FROM           all of the one to the other
graph NAME N           fills it in a graph that was captured
table NAME N           by a kernel that finds the address in a table which was brought there
computed NAME FROM N   by a kernel that is given FROM's address and how far NAME is from there
word NAME              its first word, and whether all others are the same
info TIME              MB that the GPU has free
work on | off          from now on it never rests: a thread fills a few words every millisecond
cache LIBRARY ASKED    has a caching allocator, that of the framework which LIBRARY counts as one of (torch, CuPy); ASKED: what it does when
                       it is told to empty its cache, `frees` or `fails`
keep BYTES             uses new memory by a kernel; it is in its cache from then on
emptied                on which GPUs it was told to empty its cache, in order
second                 uses a second GPU too
request BYTES MS       allocates two buffers, and uses the second one so many milliseconds after the first, with work under way all the
                       time; frees both: their first words
"""

import ctypes
import sys
import threading
import time
from pathlib import Path

import numpy as np

for beside in ("features", "frameworks", "told"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / beside))

from gpu import Module, call, driver, open_device  # noqa: E402
from told import lines  # noqa: E402

SOURCE = """
extern "C" __global__ void fill(unsigned *at, int count, unsigned value) {
    for (int n = blockIdx.x * blockDim.x + threadIdx.x; n < count; n += gridDim.x * blockDim.x) at[n] = value;
}
extern "C" __global__ void fill_by_table(unsigned **table, int count, unsigned value) {
    for (int n = blockIdx.x * blockDim.x + threadIdx.x; n < count; n += gridDim.x * blockDim.x) table[0][n] = value;
}
extern "C" __global__ void fill_computed(unsigned *from, long long far, int count, unsigned value) {
    unsigned *at = (unsigned *)((char *)from + far * 4096);
    for (int n = blockIdx.x * blockDim.x + threadIdx.x; n < count; n += gridDim.x * blockDim.x) at[n] = value;
}
"""


class Memory:
    def __init__(self):
        open_device()
        self.module = Module(SOURCE)
        self.stream = call("cuStreamCreate", 1)
        self.table_at = int(call("cuMemAlloc", 512))
        call("cuMemsetD32", self.table_at, 0, 128)
        call("cuCtxSynchronize")
        self.held, self.waited = {}, 0
        self.cached, self.emptied_on = [], []

    def alloc(self, name, size):
        self.held[name] = int(call("cuMemAlloc", int(size))), int(size)

    def allocated(self, name, size):
        self.held[name] = int(call("cuMemAllocAsync", int(size), self.stream)), int(size)

    def work(self, how):
        if how == "off":
            self.working.clear()
            self.worker.join()
        else:
            self.working = threading.Event()
            self.working.set()
            self.worker = threading.Thread(target=self.work_on, args=[call("cuCtxGetCurrent")])
            self.worker.start()

    def work_on(self, context):
        call("cuCtxSetCurrent", context)
        while self.working.is_set():
            call("cuMemsetD32Async", self.table_at, 1, 64, 0)
            time.sleep(0.001)

    def cache(self, library, asked):
        ctypes.CDLL(library)
        import cupy
        import torch

        def empty():
            self.emptied_on.append(int(call("cuCtxGetDevice")))
            if asked == "fails":
                raise RuntimeError("it has no time for that")
            while self.cached:
                call("cuMemFree", self.cached.pop())

        torch.cuda.empty_cache = empty if library.endswith("libc10_cuda.so") else lambda: None
        cupy.pool.free_all_blocks = empty if "/cupy/" in library else lambda: None

    def keep(self, size):
        self.alloc("kept", size)
        self.launch("kept", 1)
        self.cached.append(self.held.pop("kept")[0])

    def emptied(self):
        return " ".join(map(str, self.emptied_on))

    def second(self):
        call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 1))

    def request(self, size, milliseconds):
        size, value = int(size), driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        first, second = (int(call("cuMemAlloc", size)) for _ in range(2))
        self.waited += 1
        # Under way before the first use: a moment without work may count as the end of a request.
        call("cuStreamWaitValue32", self.stream, self.table_at + 256, self.waited, value)
        self.module.fill(4, 256, np.uint64(first), size // 4, 1)
        time.sleep(int(milliseconds) / 1000)
        self.module.fill(4, 256, np.uint64(second), size // 4, 2)
        call("cuMemsetD32", self.table_at + 256, self.waited, 1)
        call("cuStreamSynchronize", self.stream)
        words = np.empty(2, np.uint32)
        for at, address in enumerate((first, second)):
            call("cuMemcpyDtoH", words.ctypes.data + 4 * at, address, 4)
            call("cuMemFree", address)
        return f"{words[0]} {words[1]}"

    def free(self, name):
        call("cuMemFree", self.held.pop(name)[0])

    def freed(self, name):
        call("cuMemFreeAsync", self.held.pop(name)[0], self.stream)

    def set(self, name, number):
        at, size = self.held[name]
        call("cuMemsetD32", at, int(number), size // 4)
        call("cuCtxSynchronize")

    def launch(self, name, number):
        at, size = self.held[name]
        self.module.fill(4, 256, np.uint64(at), size // 4, int(number))
        call("cuCtxSynchronize")

    def up(self, name, number):
        at, size = self.held[name]
        words = np.full(size // 4, int(number), np.uint32)
        call("cuMemcpyHtoD", at, words.ctypes.data, size)
        call("cuCtxSynchronize")

    def copy(self, to, source):
        size = min(self.held[to][1], self.held[source][1])
        call("cuMemcpyDtoD", self.held[to][0], self.held[source][0], size)
        call("cuCtxSynchronize")

    def graph(self, name, number):
        at, size = self.held[name]
        call("cuStreamBeginCapture", self.stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        call("cuMemsetD32Async", at, int(number), size // 4, self.stream)
        graph = call("cuStreamEndCapture", self.stream)
        launched = call("cuGraphInstantiate", graph, 0)
        call("cuGraphLaunch", launched, self.stream)
        call("cuCtxSynchronize")
        call("cuGraphExecDestroy", launched)
        call("cuGraphDestroy", graph)

    def table(self, name, number):
        at, size = self.held[name]
        words = np.array([at], np.uint64)
        call("cuMemcpyHtoD", self.table_at, words.ctypes.data, 8)
        self.module.fill_by_table(4, 256, np.uint64(self.table_at), size // 4, int(number))
        call("cuCtxSynchronize")

    def computed(self, name, source, number):
        at, size = self.held[name]
        begin = self.held[source][0]
        # A word that is no address of either.
        far = np.uint64((at - begin) // 4096)
        self.module.fill_computed(4, 256, np.uint64(begin), far, size // 4, int(number))
        call("cuCtxSynchronize")

    def word(self, name):
        at, size = self.held[name]
        words = np.empty(size // 4, np.uint32)
        call("cuMemcpyDtoH", words.ctypes.data, at, size)
        return f"{words[0]} {bool((words == words[0]).all())}"

    def info(self, _):
        return call("cuMemGetInfo")[0] >> 20


def main():
    memory = Memory()
    print("ready", flush=True)
    for line in lines(Path(sys.argv[1])):
        name, *arguments = line.split()
        try:
            found = getattr(memory, name)(*arguments)
            print(f"{line}: {'ok' if found is None else found}", flush=True)
        except RuntimeError as error:
            print(f"{line}: {error}", flush=True)


main()
