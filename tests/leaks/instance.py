"""A small program with memory on the GPU and pinned memory, which it compares with what it should be once it may."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

import numpy as np  # noqa: E402
from gpu import adder, at, call, download, main  # noqa: E402


def setup():
    module, n, first, second = adder()
    pinned = call("cuMemHostAlloc", 4 * n, 0)
    at(pinned, n)[:] = np.arange(n)

    def verify():
        call("cuMemcpyHtoD", second, pinned, 4 * n)
        for array, number in ((first, 1), (second, 2)):
            module.add(n // 256, 256, array, float(number), n)
        assert (download(first, n) == 1).all() and (download(second, n) == np.arange(n) + 2).all()

    return verify


main(setup)
