"""Copies between host and GPU as it is told to: a line of JSON asks, a line of JSON answers.

make   BYTES              memory of the GPU and pinned memory of the host
load   BYTES at TIME      copies so much to the GPU in pieces of 16 MB, as a program loads a model: seconds to the first piece, to all
ask    until TIME         copies 64 KB to the GPU, has a kernel read it, copies 4 KB back, and waits, again and again: seconds of each
flood  until TIME, rounds copies 64 MB to the GPU, with a kernel behind, and on another stream as much back, again and again: bytes.
                          The kernel takes all multiprocessors for so many rounds; none: it is a small one
fill   BYTES              fills so much memory of the GPU by chance
fetch  BYTES until TIME   copies so much to the host, at most the pinned memory, again and again: when each began, seconds of each
"""

import ctypes
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/features"))

from gpu import Module, call, open_device  # noqa: E402

PIECE, FLOOD = 16 << 20, 64 << 20
UP, DOWN = 64 << 10, 4 << 10
PINNED = 256 << 20
WORDS = UP // 4
# So many times of requests are told at most.
MOST_TIMES = 4000

KERNEL = """
extern "C" __global__ void add(unsigned *words, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) words[at] += 1;
}
extern "C" __global__ void spin(unsigned *words, unsigned rounds) {
    float a = threadIdx.x;
    for (unsigned i = 0; i < rounds; ++i) a = a * 1.0001f + 1.0f;
    if (a == 0.5f) words[0] = 1;
}
"""
WIDE = 4096


class Program:
    def __init__(self):
        open_device()
        self.module = Module(KERNEL)
        self.stream, self.back = (call("cuStreamCreate", 1) for _ in range(2))
        self.first = call("cuEventCreate", 2)
        self.seen = 0

    def make(self, count):
        self.pinned_bytes = min(count, PINNED)
        self.pinned = int(call("cuMemHostAlloc", self.pinned_bytes, 0))
        ctypes.memset(self.pinned, 0, self.pinned_bytes)
        self.buffer = int(call("cuMemAlloc", count))
        self.load(PIECE, time.monotonic())
        self.once()
        return {}

    def add(self):
        self.module.add(WORDS // 256, 256, self.buffer, WORDS, stream=self.stream)

    def load(self, count, at):
        wait_until(at)
        for done in range(0, count, PIECE):
            piece = min(PIECE, count - done)
            call("cuMemcpyHtoDAsync", self.buffer + done, self.pinned + done % self.pinned_bytes, piece, self.stream)
            if done == 0:
                call("cuEventRecord", self.first, self.stream)
        call("cuEventSynchronize", self.first)
        first = time.monotonic() - at
        call("cuStreamSynchronize", self.stream)
        return {"first_s": first, "whole_s": time.monotonic() - at}

    def fill(self, count):
        """With what no other chunk has, so that an image has to have it from here."""
        chance = random.Random(count)
        for done in range(0, count, PIECE):
            piece = min(PIECE, count - done)
            ctypes.memmove(self.pinned, chance.randbytes(piece), piece)
            call("cuMemcpyHtoD", self.buffer + done, self.pinned, piece)
        return {}

    def fetch(self, count, until):
        """When each copy to the host began, and how long it took."""
        copies, count = [], min(count, self.pinned_bytes)
        while (began := time.monotonic()) < until:
            call("cuMemcpyDtoHAsync", self.pinned, self.buffer, count, self.stream)
            call("cuStreamSynchronize", self.stream)
            copies.append((began, time.monotonic() - began))
        return {"bytes": count, "copies": copies}

    def once(self):
        began = time.monotonic()
        # What comes back has to be what was sent, and one more.
        self.seen = (self.seen + 1) % 1000
        ctypes.c_uint32.from_address(self.pinned).value = self.seen
        call("cuMemcpyHtoDAsync", self.buffer, self.pinned, UP, self.stream)
        self.add()
        call("cuMemcpyDtoHAsync", self.pinned + UP, self.buffer, DOWN, self.stream)
        call("cuStreamSynchronize", self.stream)
        took = time.monotonic() - began
        if ctypes.c_uint32.from_address(self.pinned + UP).value != self.seen + 1:
            raise RuntimeError("what came back is not what was sent and one more")
        return took

    def ask(self, until):
        times = []
        while time.monotonic() < until:
            times.append(self.once())
        # Of very many, some from all over.
        return {"asked": len(times), "times_s": [round(took, 6) for took in times[:: max(1, len(times) // MOST_TIMES)]]}

    def flood(self, until, rounds=0):
        moved, count = 0, min(FLOOD, self.pinned_bytes // 2)
        while time.monotonic() < until:
            for _ in range(2):
                call("cuMemcpyHtoDAsync", self.buffer, self.pinned, count, self.stream)
                if rounds:
                    self.module.spin(WIDE, 256, self.buffer, rounds, stream=self.stream)
                else:
                    self.add()
                call("cuMemcpyDtoHAsync", self.pinned + count, self.buffer + count, count, self.back)
                moved += 2 * count
            call("cuStreamSynchronize", self.stream)
            call("cuStreamSynchronize", self.back)
        return {"bytes": moved}


def wait_until(at):
    time.sleep(max(0, at - time.monotonic() - 0.002))
    while time.monotonic() < at:
        pass


def main():
    program = Program()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(program, name)(*arguments)), flush=True)


main()
