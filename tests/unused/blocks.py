"""A program with torch's allocator, as far as Rekindle sees of one: `blocks.py LIBRARY COMMANDS KIND BYTES`.

It has 16 MB in one segment, each chunk of 2 MB full of its own number, of which the second and the last third are free, and does each
line of the file COMMANDS: `check` prints what chunks hold, `own`, `zeros` or another number. BYTES is what it has beside that.

Kinds: `plain`; `pool`, where the segment is a pool's own; `mapped`, where the program maps the memory itself; `twice`, where that is
mapped at another address too; `recorded`, where torch records who allocates; `fails`, where nobody is told; `late`, where telling makes
a request; `much`, where there is much to tell; `asks`, where a thread makes requests all the time; `keeps`, where one keeps the interpreter until there is a file COMMANDS.
"""

import ctypes
import sys
import threading
from pathlib import Path

import numpy as np

for beside in ("features", "frameworks", "told"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / beside))

import torch  # noqa: E402
from gpu import call, download, driver, open_device  # noqa: E402
from told import lines  # noqa: E402

CHUNK, CHUNKS = 2 << 20, 8
# The first free block begins and the second one ends within a chunk.
BLOCKS = [
    ("active_allocated", CHUNK + 512),
    ("inactive", 3 * CHUNK - 512),
    ("active_pending_free", CHUNK),
    ("inactive", CHUNK),
    ("inactive", 2 * CHUNK - 512),
    ("active_allocated", 512),
]


def segment(address, pool):
    at, blocks = address, []
    for state, size in BLOCKS:
        blocks.append({"address": at, "size": size, "state": state})
        at += size
    return {"address": address, "total_size": CHUNKS * CHUNK, "segment_pool_id": pool, "blocks": blocks}


def other(number):
    """A segment of nothing that is long."""
    address = 0x7000_0000_0000 + number * (20 << 20)
    states = ("active_allocated", "inactive")
    blocks = [{"address": address + at * 4096, "size": 4096, "requested_size": 4000, "state": states[at % 2], "frames": []} for at in range(60)]
    return {"address": address, "total_size": 20 << 20, "segment_pool_id": (0, 0), "blocks": blocks}


def mapped(times):
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    handle = call("cuMemCreate", CHUNKS * CHUNK, properties, 0)
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    for _ in range(times):
        address = int(call("cuMemAddressReserve", CHUNKS * CHUNK, 0, 0, 0))
        call("cuMemMap", address, CHUNKS * CHUNK, 0, handle, 0)
        call("cuMemSetAccess", address, CHUNKS * CHUNK, [access], 1)
    return address


def held(address):
    found = []
    for chunk in range(CHUNKS):
        words = set(download(address + chunk * CHUNK, CHUNK // 4, np.uint32).tolist())
        found.append({(chunk + 1,): "own", (0,): "zeros"}.get(tuple(words), str(words)))
    return " ".join(found)


def main():
    library, commands, kind, beside = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    context, times = open_device(), {"mapped": 1, "twice": 2}.get(kind)
    address = mapped(times) if times else int(call("cuMemAlloc", CHUNKS * CHUNK))
    spare = int(call("cuMemAlloc", max(beside, 4096)))
    for chunk in range(CHUNKS):
        call("cuMemsetD32", address + chunk * CHUNK, chunk + 1, CHUNK // 4)
    call("cuCtxSynchronize")
    torch.segments = [segment(address, (0, 1) if kind == "pool" else (0, 0))]
    torch.recorded = kind == "recorded"
    if kind == "fails":
        torch.segments = RuntimeError("nobody is told")
    if kind == "late":
        told = torch.segments

        def ask_and_tell():
            call("cuMemsetD32", spare, 1, 1)
            return told

        torch.cuda.memory_snapshot = ask_and_tell
    if kind == "much":
        # As many as a large model has.
        torch.cuda.memory_snapshot = lambda: [segment(address, (0, 0)), *(other(number) for number in range(150))]
    if kind == "asks":
        set_memory = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuMemsetD32_v2, ctypes.c_void_p)

        def ask():
            call("cuCtxSetCurrent", context)
            library.ask(set_memory, ctypes.c_ulonglong(spare))

        threading.Thread(target=ask, daemon=True).start()
    if kind == "keeps":
        # It says when it has it.
        ctypes.PyDLL(sys.argv[1]).keep(str(commands).encode())
    else:
        print("ready", flush=True)
    for line in lines(commands):
        print(line, held(address), flush=True)


main()
