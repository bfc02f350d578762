"""One process on two GPUs, each of which uses the other's memory: `two.py FILE`."""

import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "features")]

from gpu import Module, call, download, main, open_device, upload  # noqa: E402

ADD = 'extern "C" __global__ void add(float *to, const float *from, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) to[i] += from[i]; }'
N = 10_000


def setup():
    contexts = [open_device(device) for device in range(2)]
    random = np.random.default_rng(5)
    arrays = [random.random(N, np.float32) for _ in contexts]
    buffers, modules, streams, events = [], [], [], []
    for context, array, other in zip(contexts, arrays, contexts[::-1]):
        call("cuCtxSetCurrent", context)
        buffers.append(upload(array))
        modules.append(Module(ADD))
        streams.append(call("cuStreamCreate", 0))
        events.append(call("cuEventCreate", 2))
        assert call("cuDeviceCanAccessPeer", contexts.index(context), contexts.index(other)) == 1
        call("cuCtxEnablePeerAccess", other, 0)

    def step():
        """Each adds what the other one has, the second one behind an event of the first, and the first gets a copy of the second's."""
        for device in range(2):
            call("cuCtxSetCurrent", contexts[device])
            call("cuStreamWaitEvent", streams[device], events[1 - device], 0)
            size = np.int32(N)
            modules[device].add(-(-N // 128), 128, buffers[device], buffers[1 - device], size, stream=streams[device])
            call("cuEventRecord", events[device], streams[device])
            arrays[device] = arrays[device] + arrays[1 - device]
        call("cuMemcpyPeer", buffers[0], contexts[0], buffers[1], contexts[1], 4 * N)
        arrays[0] = arrays[1].copy()

    def check():
        for context, buffer, array in zip(contexts, buffers, arrays):
            call("cuCtxSetCurrent", context)
            assert np.array_equal(download(buffer, N), array)

    step()
    check()

    def verify():
        check()
        for _ in range(20):
            step()
            check()

    return verify


main(setup)
