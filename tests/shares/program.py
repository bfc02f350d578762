"""Says on which multiprocessors its kernels run, whenever that changes: a line of JSON, by streams and in a graph.

With a path it has work for the GPU while there is a file, without a pause, and rests while there is none.

What comes back from the GPU is checked each time: a kernel adds to words that were copied, on streams that wait for each other.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from cuda.bindings import driver  # noqa: E402
from gpu import Module, call, open_device  # noqa: E402

BLOCKS, WORDS = 64, 256
KERNELS = """
extern "C" __global__ void mark(unsigned *found) {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    if (threadIdx.x == 0) found[blockIdx.x] = number;
}
extern "C" __global__ void add(unsigned *words) { words[threadIdx.x] += 1; }
"""


def pinned(words):
    return (ctypes.c_uint32 * words).from_address(int(call("cuMemHostAlloc", 4 * words, 0)))


open_device()
module = Module(KERNELS)
streams = {"default": 0, "blocking": call("cuStreamCreate", 0), "own": call("cuStreamCreate", 1)}
found, marks = pinned(BLOCKS), int(call("cuMemAlloc", 4 * BLOCKS))
words, sums = pinned(WORDS), int(call("cuMemAlloc", 4 * WORDS))
event = call("cuEventCreate", 2)


def read(stream):
    call("cuMemcpyDtoHAsync", ctypes.addressof(found), marks, 4 * BLOCKS, stream)
    call("cuStreamSynchronize", stream)
    return sorted(set(found))


def by_stream(stream):
    module.mark(BLOCKS, 32, marks, stream=stream)
    return read(stream)


def by_graph(stream):
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    module.mark(BLOCKS, 32, marks, stream=stream)
    graph = call("cuStreamEndCapture", stream)
    launchable = call("cuGraphInstantiate", graph, 0)
    call("cuGraphLaunch", launchable, stream)
    used = read(stream)
    call("cuGraphExecDestroy", launchable)
    call("cuGraphDestroy", graph)
    return used


def check(number):
    """Adds on all streams in turn, each behind the one before."""
    words[:] = [number] * WORDS
    call("cuMemcpyHtoDAsync", sums, ctypes.addressof(words), 4 * WORDS, streams["own"])
    for before, behind in (("own", "blocking"), ("blocking", "own"), ("own", "default"), ("default", "own")):
        module.add(1, WORDS, sums, stream=streams[before])
        call("cuEventRecord", event, streams[before])
        call("cuStreamWaitEvent", streams[behind], event, 0)
    call("cuMemcpyDtoHAsync", ctypes.addressof(words), sums, 4 * WORDS, streams["own"])
    call("cuStreamSynchronize", streams["own"])
    assert set(words) == {number + 4}, (number, set(words))


hold, goes_on = call("cuStreamCreate", 1), pinned(1)
holds = False


def await_work(path):
    """A stream waits from the begin of the work to its end, so that there is always some."""
    global holds
    while not path.exists():
        goes_on[0] = 1
        holds = False
        time.sleep(0.001)
    if not holds:
        call("cuStreamSynchronize", hold)
        goes_on[0] = 0
        call("cuStreamWaitValue32", hold, ctypes.addressof(goes_on), 1, 0)
        holds = True


said = None
for number in range(1_000_000):
    if sys.argv[1:]:
        await_work(Path(sys.argv[1]))
    check(number)
    used = {name: by_stream(stream) for name, stream in streams.items()} | {"graph": by_graph(streams["own"])}
    if used != said:
        print(json.dumps(used), flush=True)
        said = used
    time.sleep(0.005)
