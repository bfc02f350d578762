"""What kernels print goes to the program's standard output as it is at that moment, also after a restore."""

import os
import tempfile

import numpy as np
from gpu import Module, call, main, open_device

SOURCE = """
extern "C" __global__ void say(int n) { printf("%d of %d\\n", threadIdx.x, n); }
"""


def setup():
    open_device()
    module = Module(SOURCE)

    source, back = call("cuMemAlloc", 64), np.zeros(64, np.uint8)

    def fetch():
        """The copy is over when it returns; the wait has what was printed before it come out."""
        call("cuMemcpyDtoHAsync", back.ctypes.data, source, back.size, 0)
        call("cuStreamSynchronize", 0)

    def said(n, wait=lambda: call("cuCtxSynchronize")):
        """What a kernel prints while standard output is a file."""
        usual = os.dup(1)
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 1)
            module.say(1, 3, n)
            wait()
            os.dup2(usual, 1)
            os.close(usual)
            file.seek(0)
            return file.read().decode().splitlines()

    assert said(5) == ["0 of 5", "1 of 5", "2 of 5"]

    assert said(6, fetch) == ["0 of 6", "1 of 6", "2 of 6"]

    event = call("cuEventCreate", 0)

    def wait_for_event():
        call("cuEventRecord", event, 0)
        call("cuEventSynchronize", event)

    assert said(8, wait_for_event) == ["0 of 8", "1 of 8", "2 of 8"]

    def verify():
        assert said(7) == ["0 of 7", "1 of 7", "2 of 7"]

    return verify


main(setup)
