"""Enqueues long kernels so that there are always some to come, and does not wait for them: `behind.py DIRECTORY ROUNDS [KIND]`.

It prints `enqueued`. When the file `touch` is there it writes to pinned memory and prints `wrote`. When the file `on` is there it goes on in every way that could overtake a copy of its memory, and prints `went
on`. When `look` is there it waits for the GPU, prints how many kernels there were and what memory holds, a line for each, and ends.
Kinds: `pinned` has each kernel's result copied to pinned memory, `argument` has a kernel write it there, `hidden` so by an address
in memory, `unwritten` has pinned memory, `timed` records an event that keeps time behind each, `forked` has it and a child that has it
mapped too, `uploads` has a number copied from pinned memory behind each.
"""

import collections
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from gpu import Module, at, call, download, driver, open_device, upload  # noqa: E402
from waits import KERNEL, SOURCE  # noqa: E402

PUT = """
extern "C" __global__ void put(unsigned *a, const unsigned *b) { a[threadIdx.x] = b[threadIdx.x]; }
extern "C" __global__ void put_there(unsigned **where, const unsigned *b) { (*where)[threadIdx.x] = b[threadIdx.x]; }
"""
THREADS = KERNEL
# So many kernels are enqueued.
AHEAD = 6
NAMES = ["new", "legacy", "freed", "mapped"]
BYTES = 4 << 20


class Mapped:
    """Memory that the program maps itself."""

    def __init__(self):
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.handle = call("cuMemCreate", BYTES, properties, 0)
        self.address = call("cuMemAddressReserve", BYTES, 0, 0, 0)
        self.map()

    def map(self):
        call("cuMemMap", self.address, BYTES, 0, self.handle, 0)
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call("cuMemSetAccess", self.address, BYTES, [access], 1)

    def unmap(self):
        call("cuMemUnmap", self.address, BYTES)


def main(directory, rounds, kind):
    open_device()
    module, buffer = Module(SOURCE + PUT), upload(np.zeros(THREADS, np.uint32))
    mapped = Mapped()
    memory = {name: upload(np.full(BYTES // 4, number + 1, np.uint32)) for number, name in enumerate(NAMES[:3])}
    memory["mapped"] = mapped.address
    call("cuMemsetD32", mapped.address, 4, BYTES // 4)
    pinned = call("cuMemHostAlloc", THREADS * 4, 0) if kind not in ("", "timed", "uploads") else None
    if pinned:
        at(pinned, THREADS, np.uint32)[:] = 0
    if kind == "forked" and os.fork() == 0:
        signal.pause()
    if kind == "uploads":
        memory["uploaded"] = upload(np.zeros(BYTES // 4, np.uint32))
        numbers = at(call("cuMemHostAlloc", (AHEAD + 1) * BYTES, 0), (AHEAD + 1) * BYTES // 4, np.uint32).reshape(AHEAD + 1, -1)
        numbers[:] = np.arange(AHEAD + 1)[:, None]
    stream = call("cuStreamCreate", 1)
    call("cuCtxSynchronize")
    where = upload(np.array([int(pinned or 0)], np.uint64))
    count, under_way = 0, collections.deque()

    def enqueue():
        module.step(2, 128, buffer, rounds, stream=stream)
        if kind == "pinned":
            call("cuMemcpyDtoHAsync", int(pinned), buffer, THREADS * 4, stream)
        if kind == "argument":
            module.put(1, THREADS, np.uint64(int(pinned)), buffer, stream=stream)
        if kind == "hidden":
            module.put_there(1, THREADS, where, buffer, stream=stream)
        if kind == "uploads":
            source = numbers[count % len(numbers)]
            call("cuMemcpyHtoDAsync", memory["uploaded"], source.ctypes.data, BYTES, stream)
        event = call("cuEventCreate", 0 if kind == "timed" else 2)
        call("cuEventRecord", event, stream)
        return event

    on, touch, look, went_on = directory / "on", directory / "touch", directory / "look", False
    while not look.exists():
        while under_way and driver.cuEventQuery(under_way[0])[0].value == 0:
            call("cuEventDestroy", under_way.popleft())
        if len(under_way) < AHEAD and not went_on:
            under_way.append(enqueue())
            count += 1
            if count == AHEAD:
                print("enqueued", flush=True)
            continue
        time.sleep(0.005)
        if touch.exists():
            at(pinned, THREADS, np.uint32)[:] = 55
            touch.unlink()
            print("wrote", flush=True)
        if went_on or not on.exists():
            continue
        went_on = True
        call("cuMemsetD32Async", memory["new"], 77, BYTES // 4, call("cuStreamCreate", 1))
        call("cuMemsetD32Async", memory["legacy"], 77, BYTES // 4, 0)
        module.step(2, 128, buffer, 5, stream=stream)
        print("went on", flush=True)
        call("cuMemFree", memory.pop("freed"))
        mapped.unmap()
        print("gave back", flush=True)
        mapped.map()
    call("cuCtxSynchronize")
    print("count", count, flush=True)
    if pinned:
        print("pinned", *set(at(pinned, THREADS, np.uint32).tolist()), flush=True)
    print("buffer", *set(download(buffer, THREADS, np.uint32).tolist()), flush=True)
    for name, address in memory.items():
        print(name, *set(download(address, BYTES // 4, np.uint32).tolist()), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *(sys.argv[3:] or [""]))
