"""Kernels of several GPUs that wait for each other, as those of collectives do: `meet.py COUNT`.

In each step a kernel on each GPU raises its flag to the step's number in memory of the first GPU, and waits for the flags of all. So
no kernel of a step ends before all have begun. The steps of each GPU are launched by a thread of its own, or all by one with
`MEET_THREADS=one`; the last GPU is late with each by `MEET_LATE` seconds, which the others wait for in their kernels. With
`MEET_LOADS` code is loaded behind each fourth kernel that waits, and unloaded. Of numbers that the first GPU steps too it prints `STEP
HASH`, and pauses for `MEET_PACE` seconds. That GPU has `MEET_BYTES` more that nothing uses.
"""

import hashlib
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "features"))

import numpy as np
from gpu import Module, call, download, open_device, upload

SOURCE = """
extern "C" __global__ void meet(volatile unsigned *flags, int mine, int count, unsigned step) {
    flags[mine] = step;
    __threadfence_system();
    for (int other = 0; other < count; other++) while (flags[other] < step);
}
extern "C" __global__ void mix(unsigned *to, unsigned k) {
    to[threadIdx.x] = to[threadIdx.x] * 1664525u + k;
}
"""
N = 256
LATE = float(os.environ.get("MEET_LATE", 0))
LOADS = bool(os.environ.get("MEET_LOADS"))
# What it prints is to be read as fast as that.
PACE = float(os.environ.get("MEET_PACE", 0.01))
BYTES = int(os.environ.get("MEET_BYTES", 1))


class Gpu:
    def __init__(self, index, count):
        self.index, self.count, self.context = index, count, open_device(index)
        self.module, self.stream = Module(SOURCE), call("cuStreamCreate", 1)
        self.scratch = upload(np.zeros(N, np.uint32))

    def current(self):
        call("cuCtxSetCurrent", self.context)

    def reaches(self, other):
        self.current()
        call("cuCtxEnablePeerAccess", other.context, 0)

    def launch(self, flags, step):
        if self.index == self.count - 1:
            time.sleep(LATE)
        self.module.meet(1, 1, flags, self.index, self.count, step, stream=self.stream)
        if LOADS and step % 4 == 0:
            loaded = Module(SOURCE)
            loaded.mix(1, N, self.scratch, step, stream=self.stream)
            call("cuModuleUnload", loaded.handle)

    def steps(self, flags):
        self.current()
        step = 0
        while True:
            step += 1
            self.launch(flags, step)
            call("cuStreamSynchronize", self.stream)


class First:
    """What the first GPU does beside the meetings."""

    def __init__(self, gpu):
        self.gpu = gpu
        gpu.current()
        self.numbers = upload(np.arange(N, dtype=np.uint32))
        self.step = 0

    def tell(self):
        self.step += 1
        self.gpu.module.mix(1, N, self.numbers, self.step, stream=self.gpu.stream)
        call("cuStreamSynchronize", self.gpu.stream)
        found = hashlib.sha256(download(self.numbers, N, np.uint32)).hexdigest()
        os.write(1, f"{self.step} {found}\n".encode())
        time.sleep(PACE)


def main(count):
    gpus = [Gpu(index, count) for index in range(count)]
    for gpu in gpus[1:]:
        gpu.reaches(gpus[0])
    first = First(gpus[0])
    upload(np.random.default_rng(1).integers(0, 256, BYTES, np.uint8))
    flags = upload(np.zeros(count, np.uint32))
    if os.environ.get("MEET_THREADS") == "one":
        while True:
            for gpu in gpus:
                gpu.current()
                gpu.launch(flags, first.step + 1)
            gpus[0].current()
            first.tell()
    for gpu in gpus[1:]:
        threading.Thread(target=gpu.steps, args=(flags,), daemon=True).start()
    gpus[0].current()
    while True:
        gpus[0].launch(flags, first.step + 1)
        first.tell()


main(int(sys.argv[1]))
