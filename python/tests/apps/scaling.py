"""Arrays multiplied on the GPU, for functions of tests."""

import numpy
from numba import cuda


@cuda.jit
def scale(numbers, factor, out):
    at = cuda.grid(1)
    if at < numbers.size:
        out[at] = factor * numbers[at]


def scaled(array, factor):
    given = cuda.as_cuda_array(array) if hasattr(array, "__cuda_array_interface__") else cuda.to_device(array)
    out = cuda.to_device(numpy.zeros(given.size, "int32"))
    scale[(given.size + 63) // 64, 64](given, factor, out)
    return out
