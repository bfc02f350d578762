"""Works on the GPU in every way that there is, and compares each step with the same beside it, until it is told to stop.

`work.py DIRECTORY [KIND ...]`: it prints `ready`, and `ok` with the steps that it has taken once the file `stop` is there.
Between steps it rests: tests have few processors between them.
"""

import itertools
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "features"))
from gpu import Module, at, call, download, driver, open_device, upload

SOURCE = """
extern "C" __global__ void mix(unsigned *a, const unsigned *b, unsigned k, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] = a[i] * 1664525u + b[(i * 7 + k) % n] + k;
}
extern "C" __global__ void follow(unsigned **where, unsigned k, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) where[0][i] = where[0][i] * 1664525u + where[1][(i * 7 + k) % n] + k;
}
__device__ unsigned total;
extern "C" __global__ void add(const unsigned *a, int n) {
    unsigned sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] ^ (unsigned)i;
    total += sum;
}
"""
N = 2048
REST = 0.002


def mix(a, b, k):
    i = np.arange(N, dtype=np.uint64)
    return (a.astype(np.uint64) * 1664525 + b[(i * 7 + k) % N] + k).astype(np.uint32)


class Work:
    def __init__(self):
        open_device()
        self.module = Module(SOURCE)
        random = np.random.default_rng(7)
        self.a, self.b = (random.integers(0, 2**32, N, np.uint32) for _ in range(2))
        self.on_a, self.on_b = upload(self.a), upload(self.b)
        self.stream, self.other = (call("cuStreamCreate", 1) for _ in range(2))
        self.event = call("cuEventCreate", 2)
        self.pinned = call("cuMemHostAlloc", N * 4, 0)
        self.sum = 0
        call("cuCtxSynchronize")

    def launch(self, k, stream=0):
        self.module.mix(N // 256, 256, self.on_a, self.on_b, k, N, stream=stream)
        self.a = mix(self.a, self.b, k)

    def kernels(self, k):
        """Launches, and a copy back."""
        for j in range(3):
            self.launch(k + j)
        assert np.array_equal(download(self.on_a, N, np.uint32), self.a)

    def uploads(self, k):
        """Pageable memory to the GPU, in the middle of launches."""
        self.launch(k)
        self.b = np.roll(self.b, 1) + np.uint32(k)
        call("cuMemcpyHtoD", self.on_b, self.b.ctypes.data, self.b.nbytes)
        self.launch(k)
        assert np.array_equal(download(self.on_b, N, np.uint32), self.b)

    def waits(self, k):
        """Nothing is copied back: waits alone tell that it is done."""
        self.launch(k, self.stream)
        call("cuStreamSynchronize", self.stream)
        self.launch(k + 1, self.stream)
        call("cuEventRecord", self.event, self.stream)
        call("cuEventSynchronize", self.event)

    def lists(self, k):
        """A kernel comes to memory by addresses in memory, and to so much that it takes a while to load."""
        if not hasattr(self, "where"):
            much = np.random.default_rng(8).integers(0, 2**32, 4 << 20, np.uint32)
            self.c, self.on_c = much[:N], upload(much)
            self.where = upload(np.array([int(self.on_c), int(self.on_b)], np.uint64))
        self.module.follow(N // 256, 256, self.where, k, N)
        call("cuStreamSynchronize", 0)
        self.c = mix(self.c, self.b, k)
        assert np.array_equal(download(self.on_c, N, np.uint32), self.c)

    def streams(self, k):
        self.launch(k, self.stream)
        call("cuEventRecord", self.event, self.stream)
        call("cuStreamWaitEvent", self.other, self.event, 0)
        self.launch(k, self.other)
        call("cuStreamSynchronize", self.other)

    def pinned_memory(self, k):
        """Pinned memory to the GPU and back; it is used for something else as soon as that may be."""
        here = at(self.pinned, N, np.uint32)
        call("cuStreamSynchronize", 0)
        self.b = self.b ^ np.uint32(k)
        here[:] = self.b
        call("cuMemcpyHtoDAsync", self.on_b, int(self.pinned), N * 4, self.stream)
        self.launch(k, self.stream)
        call("cuMemcpyDtoHAsync", int(self.pinned), self.on_a, N * 4, self.stream)
        call("cuStreamSynchronize", self.stream)
        assert np.array_equal(here, self.a)
        here[:] = 0xABCD

    def module_globals(self, k):
        address, size = self.module.address("total")
        self.module.add(1, 1, self.on_a, N)
        i = np.arange(N, dtype=np.uint32)
        self.sum = (self.sum + int((self.a ^ i).sum(dtype=np.uint64))) % 2**32
        assert download(address, 1, np.uint32)[0] == self.sum, size

    def allocates(self, k):
        """Memory comes and goes, of the device and in stream order."""
        more = upload(self.a)
        self.module.mix(N // 256, 256, more, self.on_b, k, N)
        pooled = call("cuMemAllocAsync", N * 4, self.stream)
        call("cuStreamSynchronize", 0)
        call("cuMemcpyDtoDAsync", pooled, more, N * 4, self.stream)
        call("cuStreamSynchronize", self.stream)
        assert np.array_equal(download(pooled, N, np.uint32), mix(self.a, self.b, k))
        call("cuMemFreeAsync", pooled, self.stream)
        call("cuMemFree", more)

    def captures(self, k):
        """Begins to capture a graph, and goes on doing so."""
        if not hasattr(self, "exec"):
            call("cuStreamBeginCapture", self.stream, driver.CUstreamCaptureMode(2))
            self.exec = True
        self.launch(k, self.other)
        call("cuStreamSynchronize", self.other)
        time.sleep(0.001)

    def graphs(self, k):
        if not hasattr(self, "exec"):
            call("cuStreamBeginCapture", self.stream, driver.CUstreamCaptureMode(0))
            self.module.mix(N // 256, 256, self.on_a, self.on_b, 5, N, stream=self.stream)
            self.exec = call("cuGraphInstantiate", call("cuStreamEndCapture", self.stream), 0)
        for _ in range(2):
            call("cuGraphLaunch", self.exec, self.stream)
            self.a = mix(self.a, self.b, 5)
        call("cuStreamSynchronize", self.stream)


def main(directory, *kinds):
    work = Work()
    names = kinds or ["kernels", "uploads", "waits", "lists", "streams", "pinned_memory", "module_globals", "allocates", "graphs"]
    print("ready", flush=True)
    for step in itertools.count():
        getattr(work, names[step % len(names)])(step % 1000)
        if step % 10 == 9:
            assert np.array_equal(download(work.on_a, N, np.uint32), work.a), step
            (directory / "steps").write_text(str(step))
        time.sleep(REST)
        while (directory / "pause").exists() and not (directory / "stop").exists():
            time.sleep(0.002)
        if (directory / "stop").exists():
            break
    assert np.array_equal(download(work.on_a, N, np.uint32), work.a)
    assert np.array_equal(download(work.on_b, N, np.uint32), work.b)
    print("ok", step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    os._exit(0)
