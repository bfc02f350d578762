"""Programs that copy between host and GPU.

copies.py flood           copies 256 MB at once to the GPU, again and again: `round N`
copies.py beside MARK     once the file MARK is there, times of small and of large copies in seconds, as one line of JSON
copies.py steady          copies 4 MB at once to the GPU, four of them always under way: `copies N` after each eighth
copies.py timed           4 MB to the GPU and back again and again: when it began, was there and was back, in seconds
copies.py filled MB SEED MARK   fills so much of the GPU's memory; compares it once the file MARK is there: `filled`, `right`
copies.py random SEED     random copies, kernels and graphs on several streams of all GPUs, all of them compared: `round N right`
copies.py between         copies 2 MB from the first GPU to the second and back, four of them always under way, all of them compared: `round N right`
copies.py wrong           copies from and to where nothing is, on the second of two GPUs: `told`, or `not told`, for each
"""

import ctypes
import json
import random
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from gpu import Module, call, driver, open_device  # noqa: E402

MB = 1 << 20
FLOOD, PIECE = 256 * MB, 32 * MB
SMALL, LARGE = 4096, 8 * MB
STREAMS, REGION = 4, 6 * MB
ADDED = 256
ADD = 'extern "C" __global__ void add(unsigned char *at, int value) { at[threadIdx.x] += value; }'


def pinned(count):
    """Bytes of pinned memory, as an array."""
    address = int(call("cuMemHostAlloc", count, 0))
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


def flood():
    source, buffer = pinned(PIECE), int(call("cuMemAlloc", PIECE))
    stream = call("cuStreamCreate", 1)
    for number in range(1, 1000):
        for _ in range(FLOOD // PIECE):
            call("cuMemcpyHtoDAsync", buffer, source.ctypes.data, PIECE, stream)
        print("round", number, flush=True)
        call("cuStreamSynchronize", stream)


def steady():
    count, depth = 4 * MB, 4
    source, buffer = pinned(count), int(call("cuMemAlloc", count))
    stream, events = call("cuStreamCreate", 1), [call("cuEventCreate", 2) for _ in range(depth)]
    for number in range(100_000):
        if number >= depth:
            call("cuEventSynchronize", events[number % depth])
        call("cuMemcpyHtoDAsync", buffer, source.ctypes.data, count, stream)
        call("cuEventRecord", events[number % depth], stream)
        if number % 8 == 7:
            print("copies", number + 1, flush=True)


def timed():
    count = 4 * MB
    source, buffer = pinned(count), int(call("cuMemAlloc", count))
    stream = call("cuStreamCreate", 1)
    while True:
        times = [time.monotonic()]
        for to, copy in ((True, "cuMemcpyHtoDAsync"), (False, "cuMemcpyDtoHAsync")):
            call(copy, *((buffer, source.ctypes.data) if to else (source.ctypes.data, buffer)), count, stream)
            call("cuStreamSynchronize", stream)
            times.append(time.monotonic())
        print(*times, flush=True)


def filled(count, seed, mark):
    content = np.random.default_rng(int(seed)).integers(0, 256, int(count) * MB, np.uint8)
    buffer, found = int(call("cuMemAlloc", content.size)), np.empty_like(content)
    call("cuMemcpyHtoD", buffer, content.ctypes.data, content.size)
    print("filled", flush=True)
    while not Path(mark).exists():
        time.sleep(0.02)
    call("cuMemcpyDtoH", found.ctypes.data, buffer, content.size)
    print("right" if np.array_equal(found, content) else "wrong", flush=True)
    time.sleep(1000)


def beside(mark):
    source, buffer = pinned(LARGE), int(call("cuMemAlloc", LARGE))
    stream = call("cuStreamCreate", 1)

    def took(count):
        began = time.perf_counter()
        call("cuMemcpyHtoDAsync", buffer, source.ctypes.data, count, stream)
        call("cuMemsetD32Async", buffer, 7, SMALL // 4, stream)
        call("cuStreamSynchronize", stream)
        return time.perf_counter() - began

    took(LARGE)
    print("ready", flush=True)
    while not Path(mark).exists():
        time.sleep(0.005)
    print(json.dumps({"small": [took(SMALL) for _ in range(12)], "large": [took(LARGE) for _ in range(3)]}), flush=True)
    time.sleep(1000)


def graph_of(work):
    stream = call("cuStreamCreate", 1)
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
    work(stream)
    return call("cuGraphInstantiate", call("cuStreamEndCapture", stream), 0)


def random_copies(seed):
    chance = random.Random(seed)
    contexts = [open_device(device) for device in range(call("cuDeviceGetCount"))]
    streams, regions, events, modules, graphs = [], [], [], [], []
    for number, flags in enumerate((None, 0, 1, 1)):
        call("cuCtxSetCurrent", contexts[number % len(contexts)])
        streams.append(0 if flags is None else call("cuStreamCreate", flags))
        regions.append(int(call("cuMemAlloc", REGION)))
        events.append(call("cuEventCreate", 2))
        call("cuMemsetD8", regions[-1], 0, REGION)
        modules.append(Module(ADD))
        graphs.append(graph_of(lambda stream, module=modules[-1], at=regions[-1]: module.add(1, ADDED, at, 3, stream=stream)))
        # Streams that do not wait for the legacy one would overtake it.
        call("cuCtxSynchronize")
    call("cuCtxSetCurrent", contexts[0])
    expected = [np.zeros(REGION, np.uint8) for _ in streams]
    sources = [pinned(REGION), np.empty(REGION, np.uint8)]
    for number, source in enumerate(sources):
        source[:] = np.random.default_rng(seed + number).integers(0, 256, REGION, np.uint8)
    found = [pinned(REGION), np.empty(REGION, np.uint8)]
    for number in range(1, 1000):
        for _ in range(12):
            one, other = chance.randrange(STREAMS), chance.randrange(STREAMS)
            at = chance.randrange(REGION)
            count = min(chance.choice([100, 70_000, REGION]), REGION - at)
            kind = chance.choice(["up", "up", "fill", "take", "add", "graph"])
            if kind == "up":
                source = chance.choice(sources)
                call("cuMemcpyHtoDAsync", regions[one] + at, source.ctypes.data + at, count, streams[one])
                expected[one][at : at + count] = source[at : at + count]
            elif kind == "fill":
                call("cuMemsetD8Async", regions[one] + at, number % 256, count, streams[one])
                expected[one][at : at + count] = number % 256
            elif kind in ("add", "graph"):
                begins = min(at, REGION - ADDED) if kind == "add" else 0
                call("cuCtxSetCurrent", contexts[one % len(contexts)])
                if kind == "add":
                    modules[one].add(1, ADDED, regions[one] + begins, 5, stream=streams[one])
                else:
                    call("cuGraphLaunch", graphs[one], streams[one])
                call("cuCtxSetCurrent", contexts[0])
                expected[one][begins : begins + ADDED] += 5 if kind == "add" else 3
            elif one != other:
                # It waits for what the other one has had, which goes on when this is done.
                call("cuEventRecord", events[other], streams[other])
                call("cuStreamWaitEvent", streams[one], events[other], 0)
                call("cuMemcpyDtoDAsync", regions[one], regions[other], REGION, streams[one])
                call("cuEventRecord", events[one], streams[one])
                call("cuStreamWaitEvent", streams[other], events[one], 0)
                expected[one][:] = expected[other]
        for one, stream in enumerate(streams):
            into = found[number % 2]
            call("cuMemcpyDtoHAsync", into.ctypes.data, regions[one], REGION, stream)
            call("cuStreamSynchronize", stream)
            assert np.array_equal(into, expected[one]), f"round {number}, stream {one}"
        print("round", number, "right", flush=True)


def between():
    count, depth = 2 * MB, 4
    contexts = [open_device(device) for device in range(2)]
    source, found = pinned(2 * count), [pinned(count) for _ in range(depth)]
    source[:] = np.random.default_rng(1).integers(0, 256, 2 * count, np.uint8)
    up, across, back = [], [], []
    for context, steps in zip((*contexts, contexts[0]), (up, across, back), strict=True):
        call("cuCtxSetCurrent", context)
        stream = call("cuStreamCreate", 1)
        steps += [(int(call("cuMemAlloc", count)), stream, call("cuEventCreate", 2)) for _ in range(depth)]
    expected = [None] * depth

    def send(slot, begins):
        (first, stream, event), (second, second_stream, second_event), (third, third_stream, third_event) = up[slot], across[slot], back[slot]
        call("cuCtxSetCurrent", contexts[0])
        call("cuMemcpyHtoDAsync", first, source[begins:].ctypes.data, count, stream)
        call("cuEventRecord", event, stream)
        call("cuCtxSetCurrent", contexts[1])
        call("cuStreamWaitEvent", second_stream, event, 0)
        call("cuMemcpyPeerAsync", second, contexts[1], first, contexts[0], count, second_stream)
        call("cuEventRecord", second_event, second_stream)
        call("cuCtxSetCurrent", contexts[0])
        call("cuStreamWaitEvent", third_stream, second_event, 0)
        call("cuMemcpyPeerAsync", third, contexts[0], second, contexts[1], count, third_stream)
        call("cuMemcpyDtoHAsync", found[slot].ctypes.data, third, count, third_stream)
        call("cuEventRecord", third_event, third_stream)
        expected[slot] = source[begins : begins + count]

    for number in range(100_000):
        slot = number % depth
        if number >= depth:
            call("cuEventSynchronize", back[slot][2])
            assert np.array_equal(found[slot], expected[slot]), f"copy {number - depth}"
            if slot == 0:
                print("round", number // depth, "right", flush=True)
        send(slot, number * 4096 % count)


def wrong():
    """Each mistake is made behind work of another kind, and is that of the second GPU alone."""
    contexts = [open_device(device) for device in range(2)]
    streams, buffers = [], []
    for context in contexts:
        call("cuCtxSetCurrent", context)
        streams.append(call("cuStreamCreate", 1))
        buffers.append(int(call("cuMemAlloc", PIECE)))
    source, pageable, nowhere = pinned(PIECE), np.empty(SMALL, np.uint8), buffers[1] + (100 << 30)

    def behind_a_large_copy():
        call("cuMemcpyHtoDAsync", buffers[1], source.ctypes.data, PIECE, streams[1])
        call("cuMemsetD8Async", nowhere, 1, SMALL, streams[1])

    def behind_staged_bytes_of_the_other():
        call("cuMemcpyHtoDAsync", buffers[0], pageable.ctypes.data, SMALL, streams[0])
        call("cuMemcpyDtoHAsync", pageable.ctypes.data, nowhere, SMALL, streams[1])

    for mistake in (behind_a_large_copy, behind_staged_bytes_of_the_other):
        try:
            mistake()
            call("cuStreamSynchronize", streams[1])
            print("not told", flush=True)
        except RuntimeError as error:
            print("told" if "INVALID_VALUE" in str(error) else error, flush=True)
        for stream in streams:
            call("cuStreamSynchronize", stream)
    time.sleep(1000)


open_device()
{
    "flood": flood,
    "steady": steady,
    "timed": timed,
    "filled": filled,
    "beside": beside,
    "between": between,
    "wrong": wrong,
    "random": lambda seed: random_copies(int(seed)),
}[sys.argv[1]](*sys.argv[2:])
