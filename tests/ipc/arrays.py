"""numba's arrays by their IPC handles: one process fills an array, another adds to it where it is.

Prints `STEP right`, or what is wrong, for each step.
"""

import multiprocessing
import time

import numpy
from numba import cuda


@cuda.jit
def add(numbers, what):
    at = cuda.grid(1)
    if at < numbers.size:
        numbers[at] += what


def other(line):
    handle = line.recv()
    with handle as numbers:
        while True:
            add[32, 128](numbers, line.recv())
            cuda.synchronize()
            line.send("done")


def main():
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    context.Process(target=other, args=(there,), daemon=True).start()
    numbers = cuda.to_device(numpy.arange(4096, dtype=numpy.int64))
    # A part of an array goes by the handle of all of it.
    here.send(numbers[1024:].get_ipc_handle())
    total = step = 0
    while True:
        step, total = step + 1, total + step
        here.send(step - 1)
        assert here.recv() == "done"
        wanted = numpy.arange(4096)
        wanted[1024:] += total
        found = numbers.copy_to_host()
        print(step, "right" if (found == wanted).all() else f"wrong: {found}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
