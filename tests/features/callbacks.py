"""Host functions run in the program, in stream order, before and after."""

import ctypes

import numpy as np
from gpu import call, download, driver, main, open_device, upload

seen = []
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
note = CALLBACK(lambda value: seen.append(value))


def setup():
    open_device()
    stream = call("cuStreamCreate", 1)
    buffer = upload(np.zeros(16, np.uint32))

    def add(k):
        call("cuMemsetD32Async", buffer, k, 16, stream)
        call("cuLaunchHostFunc", stream, driver.CUhostFn(ctypes.cast(note, ctypes.c_void_p).value), k)

    for k in range(1, 6):
        add(k)

    def verify():
        for k in range(6, 9):
            add(k)
        call("cuStreamSynchronize", stream)
        assert seen == list(range(1, 9)), seen
        assert np.all(download(buffer, 16, np.uint32) == 8)

    return verify


main(setup)
