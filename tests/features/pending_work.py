"""Work that is queued on streams when the checkpoint comes is in the image as if it had been waited for."""

import numpy as np
from gpu import Module, call, download, main, open_device, upload

SOURCE = """extern "C" __global__ void step(float *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) for (int k = 0; k < 50; ++k) a[i] = a[i] * 0.5f + 1.f;
}"""


def setup():
    open_device()
    module, n = Module(SOURCE), 4096
    streams = [call("cuStreamCreate", 1) for _ in range(3)]
    buffers = [upload(np.full(n, k, np.float32)) for k in range(3)]
    for _ in range(100):
        for stream, buffer in zip(streams, buffers):
            module.step(n // 128, 128, buffer, n, stream=stream)

    def verify():
        for buffer, stream in zip(buffers, streams):
            call("cuStreamSynchronize", stream)
            assert np.array_equal(download(buffer, n), np.full(n, 2, np.float32))
            module.step(n // 128, 128, buffer, n, stream=stream)
            call("cuStreamSynchronize", stream)

    return verify


main(setup)
