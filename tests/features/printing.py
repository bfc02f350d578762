"""What kernels print goes to the program's standard output as it is at that moment, also after a restore."""

import os
import tempfile

from gpu import Module, call, main, open_device

SOURCE = """
extern "C" __global__ void say(int n) { printf("%d of %d\\n", threadIdx.x, n); }
"""


def setup():
    open_device()
    module = Module(SOURCE)

    def said(n):
        """What a kernel prints while standard output is a file."""
        usual = os.dup(1)
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 1)
            module.say(1, 3, n)
            call("cuCtxSynchronize")
            os.dup2(usual, 1)
            os.close(usual)
            file.seek(0)
            return file.read().decode().splitlines()

    assert said(5) == ["0 of 5", "1 of 5", "2 of 5"]

    def verify():
        assert said(7) == ["0 of 7", "1 of 7", "2 of 7"]

    return verify


main(setup)
