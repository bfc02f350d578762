"""Module globals and constants keep contents and addresses, also those that only kernels have written."""

import numpy as np
from gpu import Module, call, download, main, open_device, upload

SOURCE = """
__device__ int counter = 5;
__device__ float table[100];
__constant__ float factor = 3;
extern "C" __global__ void count(float *out) {
    int i = threadIdx.x;
    atomicAdd(&counter, 1);
    table[i] += i * factor;
    out[i] = table[i];
}
extern "C" __global__ void read(int *out) { *out = counter; }
"""


def setup():
    open_device()
    module = Module(SOURCE)
    address, size = module.address("factor")
    assert size == 4
    call("cuMemcpyHtoD", address, np.array([2], np.float32).ctypes.data, 4)
    out = upload(np.zeros(100, np.float32))
    module.count(1, 100, out)
    call("cuCtxSynchronize")

    def verify():
        assert int(module.address("factor")[0]) == int(address) and download(address, 1)[0] == 2
        number = upload(np.zeros(1, np.int32))
        module.read(1, 1, number)
        assert download(number, 1, np.int32)[0] == 105
        module.count(1, 100, out)
        assert np.array_equal(download(out, 100), np.arange(100, dtype=np.float32) * 4)

    return verify


main(setup)
