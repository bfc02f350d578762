"""Computes on two GPUs that use each other's memory all the time: `exchange.py DIRECTORY [STEPS]`.

It prints `ready`, then a line `STEP HASH` now and then, and `ok` once the file `stop` is in the directory, or after so many steps. The
lines are the same in each run. The file `steps` says how far it is; where the file `trip` is, the second GPU's context fails once.
Between steps it rests: tests have few processors between them.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "features"))

import numpy as np
from gpu import Module, at, call, download, open_device, upload

SOURCE = """
extern "C" __global__ void mix(unsigned *to, const unsigned *from, unsigned k, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = to[i] * 1664525u + from[(i * 7 + k) % n] + k;
}
extern "C" __global__ void trip(unsigned **flag) {
    if (atomicExch(*flag, 0u)) *(volatile unsigned *)(1ull << 40) = 1;
}
"""
N = 4096
REST = 0.003
EVERY = 5
# Of these there is much on each GPU that nobody writes to. It is compared once in so many steps, and at the end.
STILL = 2_500_000
STILL_EVERY = 50


class Gpu:
    def __init__(self, index):
        self.context = open_device(index)
        self.module = Module(SOURCE)
        random = np.random.default_rng(index)
        self.a, self.b = (upload(random.integers(0, 2**32, N, np.uint32)) for _ in range(2))
        self.still = random.integers(0, 2**32, STILL, np.uint32)
        self.lies = upload(self.still)
        self.stream, self.event = call("cuStreamCreate", 1), call("cuEventCreate", 2)

    def current(self):
        call("cuCtxSetCurrent", self.context)
        return self

    def mix(self, to, k, *sources):
        for source in sources:
            self.module.mix(N // 256, 256, to, source, k, N, stream=self.stream)

    def follows(self, other):
        """What it is given from now on comes after what the other one has."""
        other.current()
        call("cuEventRecord", other.event, other.stream)
        self.current()
        call("cuStreamWaitEvent", self.stream, other.event, 0)


class Exchange:
    def __init__(self, place):
        self.place = place
        self.first, self.second = Gpu(0), Gpu(1)
        for own, other in ((self.first, self.second), (self.second, self.first)):
            own.current()
            call("cuCtxEnablePeerAccess", other.context, 0)
        self.pinned = call("cuMemHostAlloc", 4 * N, 1)
        # Where the flag lies is known to the GPU alone.
        self.flag = call("cuMemHostAlloc", 4096, 1)
        at(self.flag, 1, np.uint32)[0] = 0
        self.second.current()
        self.where = upload(np.array([int(self.flag)], np.uint64))
        for gpu in (self.first, self.second):
            gpu.current()
            call("cuCtxSynchronize")

    def step(self, k):
        first, second = self.first, self.second
        first.current().mix(first.a, k, first.b, second.b)
        second.follows(first)
        # Its kernel writes what the first one has.
        second.mix(first.a, k, second.a)
        second.mix(second.a, k, first.a, second.b)
        if (self.place / "trip").exists():
            (self.place / "trip").unlink()
            at(self.flag, 1, np.uint32)[0] = 1
        second.module.trip(1, 1, np.uint64(int(self.where)), stream=second.stream)
        first.follows(second)
        call("cuMemcpyPeerAsync", first.b, first.context, second.a, second.context, 4 * N, first.stream)
        second.follows(first)
        if k % 3 == 0:
            call("cuMemcpyPeerAsync", second.b, second.context, first.a, first.context, 4 * N, second.stream)
            call("cuStreamSynchronize", second.stream)
        if k % 2:
            self.passes_on(k)
        first.follows(second)
        call("cuMemcpyDtoHAsync", int(self.pinned), first.b, 4 * N, first.stream)
        call("cuStreamSynchronize", first.stream)
        return at(self.pinned, N, np.uint32)

    def passes_on(self, k):
        """By memory that comes and goes, in the order of both legacy streams."""
        first, second = self.first, self.second
        call("cuStreamSynchronize", second.stream)
        second.current()
        passing = call("cuMemAlloc", 4 * N)
        call("cuMemcpyPeer", passing, second.context, first.a, first.context, 4 * N)
        call("cuStreamSynchronize", 0)
        second.mix(second.b, k, passing)
        call("cuStreamSynchronize", second.stream)
        call("cuMemFree", passing)

    def hash(self):
        found = hashlib.sha256()
        for gpu in (self.first, self.second):
            gpu.current()
            call("cuCtxSynchronize")
            for buffer in (gpu.a, gpu.b):
                found.update(download(buffer, N, np.uint32))
        return found.hexdigest()

    def compare(self):
        for gpu in (self.first, self.second):
            gpu.current()
            assert np.array_equal(download(gpu.lies, STILL, np.uint32), gpu.still)


def note(file, k):
    """In place: a new file for each step is work for the file system."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    os.pwrite(opened, b"%12d" % k, 0)
    os.close(opened)


def main(place, steps):
    exchange = Exchange(place)
    print("ready", flush=True)
    k, seen = 0, hashlib.sha256()
    while not (steps and k == steps or (place / "stop").exists() and k % EVERY == 0):
        k += 1
        seen.update(exchange.step(k))
        if k % EVERY == 0:
            print(k, exchange.hash(), seen.hexdigest(), flush=True)
        if k % STILL_EVERY == 0:
            exchange.compare()
        note(place / "steps", k)
        time.sleep(REST)
    exchange.compare()
    print("ok", flush=True)


main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
