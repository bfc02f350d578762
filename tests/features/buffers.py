"""Many small buffers and a few large ones keep contents and addresses; freed ones can be allocated again."""

import numpy as np
from gpu import call, download, main, open_device, upload


def setup():
    open_device()
    random = np.random.default_rng(3)
    sizes = [1, 7, 100, 1000, 4096, 100_000, 3_000_000] * 8
    arrays = [random.random(n, np.float32) for n in sizes]
    buffers = [upload(a) for a in arrays]
    for n in range(0, len(buffers), 3):
        call("cuMemFree", buffers[n])

    def verify():
        for n, (buffer, array) in enumerate(zip(buffers, arrays)):
            if n % 3:
                assert np.array_equal(download(buffer, array.size), array), n
        again = [upload(a) for a in arrays]
        kept = {int(b) for n, b in enumerate(buffers) if n % 3}
        assert not kept & {int(b) for b in again}
        for buffer, array in zip(again, arrays):
            assert np.array_equal(download(buffer, array.size), array)
        base, size = call("cuMemGetAddressRange", buffers[1])
        assert int(base) == int(buffers[1]) and size == arrays[1].nbytes

    return verify


main(setup)
