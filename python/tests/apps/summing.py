"""Sums numbers that lie on the GPU, with kernels that are launched through the driver: numba would take seconds to begin."""

import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests/features"))

from gpu import Module, call, download, driver, open_device, upload

SOURCE = """
extern "C" __global__ void add(const int *numbers, int every, int count, int *total) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) atomicAdd(total, numbers[at * every]);
}
extern "C" __global__ void clear(int *numbers) { numbers[threadIdx.x] = 0; }
"""


def at(array):
    """Where an array lies on the GPU."""
    return numpy.uint64(array.__cuda_array_interface__["data"][0])


class Summing:
    def __init__(self):
        self.context, self.module = open_device(), Module(SOURCE)
        self.module.function("add")
        self.module.function("clear")
        call("cuCtxSynchronize")

    def few(self, array, mark=None):
        """The sum of 64 of the numbers, and of what is left in the end. Once that is launched there is the file `mark`."""
        call("cuCtxSetCurrent", self.context)
        (size,) = array.__cuda_array_interface__["shape"]
        every = size // 64
        total = upload(numpy.zeros(1, "int32"))
        self.module.add(8, 32, at(array), every, -(-size // every), total)
        if mark:
            Path(mark).touch()
        found = int(download(total, 1, "int32")[0])
        call("cuMemFree", total)
        return found

    def clear(self, array):
        call("cuCtxSetCurrent", self.context)
        self.module.clear(1, 4, at(array))
        call("cuCtxSynchronize")

    def copy_over(self, array, numbers):
        """The driver's code, which may come with the wait that follows."""
        call("cuCtxSetCurrent", self.context)
        (code,) = driver.cuMemcpyHtoD(int(at(array)), numbers.ctypes.data, numbers.nbytes)
        return code.value or driver.cuCtxSynchronize()[0].value
