"""Waits for one long kernel after the other, each on what the one before has left: `N FOUND`. The argument is how long they are."""

import sys
import threading
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from gpu import Module, call, download, open_device, upload  # noqa: E402

SOURCE = """extern "C" __global__ void step(unsigned *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = a[i];
    for (int k = 0; k < n; ++k) x = x * 3 + 1;
    a[i] = x;
}"""
WAYS = ["stream", "event", "context"]


def wait(way, stream, event):
    match way:
        case "stream":
            call("cuStreamSynchronize", stream)
        case "event":
            call("cuEventRecord", event, stream)
            call("cuEventSynchronize", event)
        case "context":
            call("cuCtxSynchronize")


def main(rounds):
    context = open_device()
    module, buffer = Module(SOURCE), upload(np.zeros(256, np.uint32))
    stream, event = call("cuStreamCreate", 1), call("cuEventCreate", 2)

    def run():
        call("cuCtxSetCurrent", context)
        for number in range(1000):
            module.step(2, 128, buffer, rounds, stream=stream)
            wait(WAYS[number % len(WAYS)], stream, event)
            print(number, *set(download(buffer, 256, np.uint32).tolist()), flush=True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


main(int(sys.argv[1]))
