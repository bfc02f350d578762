"""Managed memory is one memory for program and kernels, before and after."""

import numpy as np
from gpu import Module, at, call, driver, main, open_device

SOURCE = 'extern "C" __global__ void bump(int *a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] += 1; }'


def setup():
    open_device()
    module, n = Module(SOURCE), 5000
    pointer = call("cuMemAllocManaged", 4 * n, 1)
    view = at(pointer, n, np.int32)
    nowhere = driver.CUmemLocation()
    nowhere.type, nowhere.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 10**6
    assert int(driver.cuMemPrefetchAsync(pointer, 4 * n, nowhere, 0, 0)[0]) == 101
    view[:] = np.arange(n)
    module.bump((n + 127) // 128, 128, pointer, n)
    call("cuCtxSynchronize")

    def verify():
        assert np.array_equal(view, np.arange(n) + 1)
        module.bump((n + 127) // 128, 128, pointer, n)
        call("cuCtxSynchronize")
        assert np.array_equal(view, np.arange(n) + 2)

    return verify


main(setup)
