"""Waits for one long kernel after the other, each on what the one before has left: `N FOUND`. The arguments are how long they
are, and in which ways it waits, in turns."""

import sys
import threading
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from gpu import Module, call, download, open_device, upload  # noqa: E402

# It takes long, and sleeps all the while, so that it takes no processor of other tests: 16 rounds are a millisecond.
SOURCE = """extern "C" __global__ void step(unsigned *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = a[i];
    for (int k = 0; k < n; ++k) {
        x = x * 3 + 1;
        if (k % 16 == 15) __nanosleep(1000000);
    }
    a[i] = x;
}"""
KERNEL = 256
# Several pieces of a staging area.
NUMBERS = np.arange(3 << 18, dtype=np.uint32)


def wait(way, stream, event, buffer):
    """What the kernel has left."""
    match way:
        case "stream":
            call("cuStreamSynchronize", stream)
        case "event":
            call("cuEventRecord", event, stream)
            call("cuEventSynchronize", event)
        case "context":
            call("cuCtxSynchronize")
        case "copy":
            # It comes back when the bytes are there.
            into = np.zeros_like(NUMBERS)
            call("cuMemcpyDtoHAsync", into.ctypes.data, buffer, into.nbytes, stream)
            assert np.array_equal(into[KERNEL:], NUMBERS[KERNEL:])
            return into[:KERNEL]
    return download(buffer, KERNEL, np.uint32)


def main(rounds, ways):
    context = open_device()
    module, buffer = Module(SOURCE), upload(np.concatenate([np.zeros(KERNEL, np.uint32), NUMBERS[KERNEL:]]))
    stream, event = call("cuStreamCreate", 1), call("cuEventCreate", 2)

    def run():
        call("cuCtxSetCurrent", context)
        for number in range(1000):
            module.step(2, 128, buffer, rounds, stream=stream)
            left = wait(ways[number % len(ways)], stream, event, buffer)
            print(number, *set(left.tolist()), flush=True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
