"""What each of the programs beside this does on the GPU: it counts, and squares numbers, by kernels of numba's."""

import threading

import numpy
from numba import cuda


@cuda.jit
def bump(counter):
    counter[0] += 1


@cuda.jit
def square(values):
    at = cuda.grid(1)
    if at < values.size:
        values[at] *= values[at]


class Counter:
    def __init__(self):
        self.turn = threading.Lock()
        self.counter = cuda.to_device(numpy.zeros(1, dtype=numpy.int64))

    def next(self):
        """How often it was asked, and the sum of the squares of as many numbers."""
        with self.turn:
            bump[1, 1](self.counter)
            count = int(self.counter.copy_to_host()[0])
            values = cuda.to_device(numpy.arange(1000, dtype=numpy.int64))
            square[8, 128](values)
            return {"count": count, "sum": int(values.copy_to_host().sum())}
