"""Launches, and tells what each took: `program.py DIRECTORY MEGABYTES`. Whenever `go` is there, a line with what was asked for:

`launches`: microseconds a launch, and a launch with a wait, the medians of batches.
`answers`: it asks for a word of GPU memory all the time until the file is gone; a line with when the longest pause began and how
long it was.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "features"))
from gpu import Module, call, download, open_device, pack

SOURCE = 'extern "C" __global__ void count(unsigned *a) { *a += 1; }'
BATCH, BATCHES = 400, 15


def launcher(function, argument):
    """A launch by the driver alone, without what the feature programs do for each."""
    slots, pointers = pack([argument])
    arguments = (function, 1, 1, 1, 1, 1, 1, 0, 0, pointers.ctypes.data, 0)

    def launch(_keep=slots):
        call("cuLaunchKernel", *arguments)

    return launch


def timed(step, count):
    times = []
    for _ in range(BATCHES):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        call("cuCtxSynchronize")
        times.append(1e6 * (time.perf_counter() - begin) / count)
    return statistics.median(times)


def main():
    directory, megabytes = Path(sys.argv[1]), int(sys.argv[2])
    open_device()
    module = Module(SOURCE)
    word = call("cuMemAlloc", 4)
    call("cuMemsetD32", word, 0, 1)
    held = call("cuMemAlloc", megabytes << 20) if megabytes else None
    launch = launcher(module.function("count"), word)

    def waited():
        launch()
        call("cuStreamSynchronize", 0)

    go = directory / "go"
    print("ready", flush=True)
    while True:
        while not go.exists():
            time.sleep(0.002)
        wanted = go.read_text()
        if wanted == "launches":
            print(timed(launch, BATCH), timed(waited, BATCH // 4), held is not None, flush=True)
            go.unlink()
        elif wanted == "answers":
            last, longest = time.time(), (0, 0)
            while go.exists():
                launch()
                download(word, 1, np.uint32)
                now = time.time()
                longest = max(longest, (now - last, last))
                last = now
            print(longest[1], longest[0], flush=True)


main()
