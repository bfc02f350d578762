"""Enqueues long kernels on the first of three GPUs, whose results go to memory of the second one, and does not wait for them:
`gpus.py DIRECTORY ROUNDS`.

It prints `enqueued`. When the file `on` is there, the second GPU and the third, whose context is made then, write to memory of the
first one, and the second to its own; it prints `went on`. When `look` is there it waits for all GPUs, prints how many kernels there
were and what memory holds, a line for each, and ends.
"""

import collections
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from behind import AHEAD, BYTES, PUT, THREADS  # noqa: E402
from gpu import Module, call, download, driver, open_device, upload  # noqa: E402
from waits import SOURCE  # noqa: E402

NEW = 77


def filled(value):
    return upload(np.full(BYTES // 4, value, np.uint32))


def main(directory, rounds):
    first, second = open_device(0), open_device(1)
    modules, memory = {}, {}
    for context, other in ((first, second), (second, first)):
        call("cuCtxSetCurrent", context)
        call("cuCtxEnablePeerAccess", other, 0)
        modules[context] = Module(SOURCE + PUT)
    result, memory["second's own"], seven = upload(np.zeros(THREADS, np.uint32)), filled(1), filled(NEW)
    call("cuCtxSetCurrent", first)
    buffer, memory["by second"], memory["by third"] = upload(np.zeros(THREADS, np.uint32)), filled(2), filled(3)
    stream = call("cuStreamCreate", 1)
    for context in (second, first):
        call("cuCtxSetCurrent", context)
        call("cuCtxSynchronize")
    count, under_way = 0, collections.deque()
    on, look, went_on = directory / "on", directory / "look", False
    while not look.exists():
        while under_way and driver.cuEventQuery(under_way[0])[0].value == 0:
            call("cuEventDestroy", under_way.popleft())
        if len(under_way) < AHEAD and not went_on:
            modules[first].step(2, 128, buffer, rounds, stream=stream)
            modules[first].put(1, THREADS, result, buffer, stream=stream)
            under_way.append(call("cuEventCreate", 2))
            call("cuEventRecord", under_way[-1], stream)
            count += 1
            if count == AHEAD:
                print("enqueued", flush=True)
            continue
        time.sleep(0.005)
        if went_on or not on.exists():
            continue
        went_on = True
        call("cuCtxSetCurrent", second)
        of_second = call("cuStreamCreate", 1)
        modules[second].put(1, THREADS, memory["by second"], seven, stream=of_second)
        call("cuMemsetD32Async", memory["second's own"], NEW, BYTES // 4, of_second)
        third = open_device(2)
        of_third, source = call("cuStreamCreate", 1), call("cuMemAlloc", BYTES)
        call("cuMemsetD32Async", source, NEW, BYTES // 4, of_third)
        call("cuMemcpyPeerAsync", memory["by third"], first, source, third, BYTES, of_third)
        print("went on", flush=True)
        call("cuCtxSetCurrent", first)
    for context in (second, third, first) if went_on else (second, first):
        call("cuCtxSetCurrent", context)
        call("cuCtxSynchronize")
    print("count", count, flush=True)
    print("result", *set(download(result, THREADS, np.uint32).tolist()), flush=True)
    for name, address in memory.items():
        print(name, *download(address, THREADS, np.uint32).tolist()[:1], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
