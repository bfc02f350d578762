"""Two threads: one gives its stream more than that takes, the other has a stream of its own.

threads.py released           the first stream waits for a value that the second thread writes: prints `released`
threads.py beside COUNT NS    kernels of so many ns each: how many launches of the second thread were answered until the first had
                              launched all of its, and what they have left: `ok ANSWERS`
threads.py one COUNT NS       the first thread alone: `begun`, then `ok 0`
"""

import sys
import threading
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from cuda.bindings import driver  # noqa: E402
from gpu import Module, call, download, open_device, upload  # noqa: E402

SOURCE = """
extern "C" __global__ void step(unsigned *word, unsigned ns) {
    if (ns) asm volatile("nanosleep.u32 %0;" :: "r"(ns));
    *word += 1;
}
"""
NON_BLOCKING = 1


class Threads:
    def __init__(self):
        self.context = open_device()
        self.module = Module(SOURCE)
        self.streams = [call("cuStreamCreate", NON_BLOCKING) for _ in range(2)]
        self.words = [upload(np.zeros(1, np.uint32)) for _ in range(2)]
        self.step(0, 0)
        call("cuCtxSynchronize")

    def step(self, which, ns):
        self.module.step(1, 1, np.uint64(self.words[which]), ns, stream=self.streams[which])

    def fill(self, count, ns):
        call("cuCtxSetCurrent", self.context)
        for _ in range(count):
            self.step(0, ns)

    def beside(self, what, *arguments):
        thread = threading.Thread(target=what, args=arguments, daemon=True)
        thread.start()
        return thread

    def left(self, which):
        return int(download(self.words[which], 1, np.uint32)[0])


def released():
    threads, value = Threads(), upload(np.zeros(1, np.uint32))
    call("cuStreamWaitValue32", threads.streams[0], value, 1, driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
    filling = threads.beside(threads.fill, 3000, 0)
    filling.join(1)
    assert filling.is_alive(), "a stream is to take about a thousand"
    call("cuStreamWriteValue32", threads.streams[1], value, 1, 0)
    filling.join()
    call("cuCtxSynchronize")
    assert threads.left(0) == 3001
    print("released", flush=True)


def beside(count, ns, alone=False):
    threads, answers = Threads(), 0
    filling = threads.beside(threads.fill, count, ns)
    print("begun", flush=True)
    while filling.is_alive() and not alone:
        threads.step(1, 0)
        call("cuStreamSynchronize", threads.streams[1])
        answers += 1
    filling.join()
    call("cuCtxSynchronize")
    assert [threads.left(which) for which in (0, 1)] == [count + 1, answers]
    print("ok", answers, flush=True)


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    if name == "released":
        released()
    else:
        beside(*map(int, numbers), alone=name == "one")
