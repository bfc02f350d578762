"""Stream-ordered allocations survive, and their memory is reused."""

import numpy as np
from cuda.bindings.driver import CUmemPool_attribute as Attribute
from gpu import call, download, main, open_device


def memory():
    """What the device's pool has, and how much of that is in use."""
    pool = call("cuDeviceGetDefaultMemPool", 0)
    attributes = (Attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, Attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    return tuple(int(call("cuMemPoolGetAttribute", pool, attribute)) for attribute in attributes)


def setup():
    open_device()
    stream = call("cuStreamCreate", 1)
    buffers = [call("cuMemAllocAsync", 1 << 20, stream) for _ in range(6)]
    for k, buffer in enumerate(buffers):
        call("cuMemsetD32Async", buffer, k, 1 << 18, stream)
    for buffer in buffers[::2]:
        call("cuMemFreeAsync", buffer, stream)
        call("cuMemFreeAsync", 0, stream)

    reserved, used = memory()
    assert reserved > used >= 3 << 20, (reserved, used)

    def verify():
        for k in (1, 3, 5):
            assert np.all(download(buffers[k], 1 << 18, np.uint32) == k)
        for _ in range(50):
            buffer = call("cuMemAllocAsync", 1 << 20, stream)
            call("cuMemsetD32Async", buffer, 9, 1 << 18, stream)
            call("cuMemFreeAsync", buffer, stream)
        call("cuStreamSynchronize", stream)
        for k in (1, 3, 5):
            assert np.all(download(buffers[k], 1 << 18, np.uint32) == k)
            call("cuMemFreeAsync", buffers[k], stream)
        call("cuStreamSynchronize", stream)
        call("cuMemPoolTrimTo", call("cuDeviceGetDefaultMemPool", 0), 0)
        assert memory() == (0, 0)

    return verify


main(setup)
