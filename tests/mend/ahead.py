"""Enqueues work on one stream so that there is always some to come, and compares what each step leaves with the same beside it:
`ahead.py DIRECTORY ROUNDS [KIND ...]`. It waits for the step that is `AHEAD` steps back alone, so its GPU never rests.

A step is a kernel that takes long, in `ROUNDS`, and what the kinds add: `kernels` launches, `pinned` copies from and to pinned
memory, `uploads` a copy of memory of its own, `allocates` memory that comes and goes, `frees` the same in stream order, `other`
work of another stream, `recorded` a timed event, `much` copies that soon fill a journal. Once the file `fault` is there, a kernel
writes where nothing is. It prints `ready`; once the file `stop` is there, `ok`, the number of steps, how
many questions that are answered at once took more than half as long as a step took at least from when it was enqueued to its end.
"""

import collections
import itertools
import os
import sys
import time
from pathlib import Path

import numpy as np
from work import SOURCE, N, mix

sys.path.insert(0, str(Path(__file__).parent.parent / "features"))
from gpu import Module, at, call, download, open_device, upload  # noqa: E402

# `step` takes long, and sleeps all the while, so that it takes no processor of other tests: 16 rounds are a millisecond.
LONG = """
extern "C" __global__ void step(unsigned *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = a[i];
    for (int k = 0; k < n; ++k) {
        x = x * 3 + 1;
        if (k % 16 == 15) __nanosleep(1000000);
    }
    a[i] = x;
}
extern "C" __global__ void fail(int *word) { *word = 1; }
extern "C" __global__ void sizes(unsigned *a, int rows, int columns) {}
"""
# So many steps are enqueued.
AHEAD = 4
MUCH = 4 << 20
KINDS = ["kernels", "pinned", "uploads", "allocates", "frees"]


class Work:
    def __init__(self, rounds):
        open_device()
        self.module, self.rounds = Module(SOURCE + LONG), rounds
        random = np.random.default_rng(7)
        self.a, self.b = (random.integers(0, 2**32, N, np.uint32) for _ in range(2))
        self.on_a, self.on_b = upload(self.a), upload(self.b)
        self.long = upload(np.zeros(128, np.uint32))
        self.stream, self.other = (call("cuStreamCreate", 1) for _ in range(2))
        self.pinned = call("cuMemHostAlloc", 2 * (AHEAD + 1) * N * 4, 0)
        self.events = [call("cuEventCreate", 2) for _ in range(AHEAD + 1)]
        self.timed = call("cuEventCreate", 0)
        self.elsewhere, self.count = upload(np.zeros(N, np.uint32)), 0
        call("cuCtxSynchronize")

    def place(self, number):
        """Pinned memory of its own for each step that is under way."""
        return int(self.pinned) + number * N * 4

    def launch(self, k):
        self.module.mix(N // 256, 256, self.on_a, self.on_b, k, N, stream=self.stream)
        self.a = mix(self.a, self.b, k)

    def kernels(self, k, turn):
        for j in range(3):
            self.launch(k + j)
        # Side by side they look like an address: 0x500000000200.
        self.module.sizes(1, 1, self.long, 512, 20480, stream=self.stream)

    def pinned_memory(self, k, turn):
        self.b = self.b ^ np.uint32(k)
        at(self.place(AHEAD + 1 + turn), N, np.uint32)[:] = self.b
        call("cuMemcpyHtoDAsync", self.on_b, self.place(AHEAD + 1 + turn), N * 4, self.stream)
        self.launch(k)

    def uploads(self, k, turn):
        self.b = np.roll(self.b, 1) + np.uint32(k)
        call("cuMemcpyHtoDAsync", self.on_b, self.b.ctypes.data, self.b.nbytes, self.stream)
        self.launch(k)

    def allocates(self, k, turn):
        """Small memory, which is given back when all has ended: so this comes seldom."""
        more = call("cuMemAlloc", N * 4)
        call("cuMemcpyDtoDAsync", more, self.on_a, N * 4, self.stream)
        self.module.mix(N // 256, 256, more, self.on_b, k, N, stream=self.stream)
        call("cuMemcpyDtoDAsync", self.on_a, more, N * 4, self.stream)
        self.a = mix(self.a, self.b, k)
        if k % 40 == 0:
            call("cuMemFree", more)

    def frees(self, k, turn):
        more = call("cuMemAllocAsync", N * 4, self.stream)
        call("cuMemcpyDtoDAsync", more, self.on_a, N * 4, self.stream)
        self.module.mix(N // 256, 256, more, self.on_b, k, N, stream=self.stream)
        call("cuMemcpyDtoDAsync", self.on_a, more, N * 4, self.stream)
        self.a = mix(self.a, self.b, k)
        call("cuMemFreeAsync", more, self.stream)

    def other_stream(self, k, turn):
        call("cuMemsetD32Async", self.elsewhere, k, N, self.other)
        self.count = k

    def recorded(self, k, turn):
        call("cuEventRecord", self.timed, self.stream)
        self.launch(k)

    def much(self, k, turn):
        if not hasattr(self, "source"):
            self.source, self.on_much = call("cuMemHostAlloc", MUCH * (AHEAD + 1), 0), call("cuMemAlloc", MUCH)
        source = at(int(self.source) + MUCH * turn, MUCH // 4, np.uint32)
        source[:] = k
        call("cuMemcpyHtoDAsync", self.on_much, int(self.source) + MUCH * turn, MUCH, self.stream)
        self.module.mix(N // 256, 256, self.on_a, self.on_much, 0, N, stream=self.stream)
        self.a = mix(self.a, source[:N], 0)

    def step(self, kind, k, turn):
        self.module.step(1, 128, self.long, self.rounds, stream=self.stream)
        getattr(self, {"pinned": "pinned_memory", "other": "other_stream"}.get(kind, kind))(k, turn)
        call("cuMemcpyDtoHAsync", self.place(turn), self.on_a, N * 4, self.stream)
        call("cuEventRecord", self.events[turn], self.stream)


def main(directory, rounds, *kinds):
    work, kinds, under_way, asked, queue = Work(rounds), kinds or KINDS, collections.deque(), [], 1e9
    print("ready", flush=True)
    for step in itertools.count():
        turn = step % (AHEAD + 1)
        if len(under_way) > AHEAD:
            number, before, wanted, since = under_way.popleft()
            call("cuEventSynchronize", work.events[before])
            queue = min(queue, time.monotonic() - since)
            found = at(work.place(before), N, np.uint32)
            assert np.array_equal(found, wanted), number
            # It is used for something else as soon as that may be.
            found[:] = 0xABCD
        if (directory / "stop").exists():
            break
        if (directory / "fault").exists():
            work.module.fail(1, 1, 1 << 40, stream=work.stream)
        work.step(kinds[step % len(kinds)], step % 1000, turn)
        began = time.monotonic()
        call("cuMemGetInfo")
        asked.append(time.monotonic() - began)
        under_way.append((step, turn, work.a, began))
        (directory / "steps").write_text(str(step))
    call("cuCtxSynchronize")
    assert np.array_equal(download(work.on_a, N, np.uint32), work.a)
    assert np.array_equal(download(work.on_b, N, np.uint32), work.b)
    assert not work.count or np.all(download(work.elsewhere, N, np.uint32) == work.count)
    print("ok", step, sum(time > queue / 2 for time in asked), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    os._exit(0)
