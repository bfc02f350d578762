"""Pinned memory keeps its contents and is still pinned: the GPU reads and writes it at the same address."""

import numpy as np
from gpu import Module, at, call, download, main, open_device, upload

SOURCE = """extern "C" __global__ void twice(float *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] *= 2;
}"""


def setup():
    open_device()
    module, n = Module(SOURCE), 1 << 20
    pointers = [call("cuMemHostAlloc", 4 * n, flags) for flags in (0, 1, 2)]
    views = [at(p, n) for p in pointers]
    for k, view in enumerate(views):
        view[:] = np.arange(n) % 1000 + k
    device = upload(np.zeros(n, np.float32))
    stream = call("cuStreamCreate", 1)

    def verify():
        for k, (pointer, view) in enumerate(zip(pointers, views)):
            assert np.array_equal(view, (np.arange(n) % 1000 + k).astype(np.float32))
            call("cuMemcpyHtoDAsync", device, pointer, 4 * n, stream)
            module.twice(n // 256, 256, device, n, stream=stream)
            call("cuMemcpyDtoHAsync", pointer, device, 4 * n, stream)
            call("cuStreamSynchronize", stream)
            assert np.array_equal(view, 2 * (np.arange(n) % 1000 + k).astype(np.float32))
            module.twice(n // 256, 256, int(call("cuMemHostGetDevicePointer", pointer, 0)), n)
            call("cuCtxSynchronize")
            assert view[5] == 4 * (5 + k)
        assert np.array_equal(download(device, n), 2 * (np.arange(n) % 1000 + 2).astype(np.float32))
        for pointer in pointers:
            call("cuMemFreeHost", pointer)

    return verify


main(setup)
