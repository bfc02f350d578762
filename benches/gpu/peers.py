"""Which memory of a process with peer access between two GPUs the driver brings back, where the process never stops: no CRIU
is in this, and nothing of Rekindle's.

    python peers.py RESULTS.json        a row for each case
    python peers.py KIND MB COUNT       one process: says `ready`, then for each line that it is given whether its memory is as it was
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

# Ways of allocating, megabytes of each allocation, allocations.
CASES = [
    ("alloc", 128, 16),
    ("alloc", 192, 4),
    ("alloc", 240, 4),
    ("alloc", 256, 1),
    ("alloc", 320, 1),
    ("alloc", 500, 1),
    ("alloc", 512, 1),
    ("alloc", 1024, 1),
    ("mapped", 1024, 1),
    ("mapped", 256, 4),
    ("mapped", 20, 64),
    ("alloc, no peer access", 1024, 1),
    ("mapped, no peer access", 1024, 1),
]
STEPS = ("Lock", "Checkpoint", "Restore", "Unlock")
GPUS = 2


class Cuda:
    """The driver's functions; an error is raised."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ.get("REKINDLE_LIBCUDA", "libcuda.so.1"))
        self.call("cuInit", 0)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with error {code}")

    def contexts(self, are_peers):
        found = []
        for number in range(GPUS):
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(device), number)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            found.append(context)
        for number in range(GPUS) if are_peers else ():
            self.call("cuCtxSetCurrent", found[number])
            self.call("cuCtxEnablePeerAccess", found[1 - number], 0)
        return found

    def allocate(self, size, _gpu, _are_peers):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def map(self, size, gpu, are_peers):
        """As allocators with expandable segments do."""
        at, handle, none = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64(0)
        # CUmemAllocationProp: pinned, no handle to share, on that device.
        wanted = (ctypes.c_int * 8)(1, 0, 1, gpu)
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), wanted, none)
        self.call("cuMemAddressReserve", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_size_t(0), none, none)
        self.call("cuMemMap", at, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, none)
        # CUmemAccessDesc: on that device, read and write.
        access = (ctypes.c_int * 6)(1, gpu, 3, 1, 1 - gpu, 3)
        self.call("cuMemSetAccess", at, ctypes.c_size_t(size), access, ctypes.c_size_t(GPUS if are_peers else 1))
        return at


def serve(kind, megabytes, count):
    cuda, are_peers, size = Cuda(), "no peer access" not in kind, megabytes << 20
    contexts, made = cuda.contexts(are_peers), []
    for number in range(count):
        gpu, word = number % GPUS, 1000 + number
        cuda.call("cuCtxSetCurrent", contexts[gpu])
        at = (cuda.map if kind.startswith("mapped") else cuda.allocate)(size, gpu, are_peers)
        cuda.call("cuMemsetD32_v2", at, ctypes.c_uint(word), ctypes.c_size_t(size // 4))
        made.append((gpu, at.value, word))
    for context in contexts:
        cuda.call("cuCtxSetCurrent", context)
        cuda.call("cuCtxSynchronize")
    print("ready", flush=True)
    for _ in sys.stdin:
        readers = [(reader, at, word) for gpu, at, word in made for reader in (range(GPUS) if are_peers else [gpu])]
        print("same" if all(last_word(cuda, contexts[reader], at, size) == word for reader, at, word in readers) else "other", flush=True)


def last_word(cuda, context, at, size):
    word = ctypes.c_uint()
    cuda.call("cuCtxSetCurrent", context)
    cuda.call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(at + size - 4), ctypes.c_size_t(4))
    return word.value


def start(case):
    command = [sys.executable, __file__, *map(str, case)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def measure(cuda, case, process):
    """Each step's code and seconds, and what the process has found then."""
    row = {"kind": case[0], "mb": case[1], "count": case[2], "ok": False, "steps": {}}
    said = process.stdout.readline().strip()
    if said != "ready":
        process.kill()
        return {**row, "error": f"{said} {process.stdout.read()[-600:]}"}
    for name in STEPS:
        began = time.perf_counter()
        code = getattr(cuda.library, f"cuCheckpointProcess{name}")(ctypes.c_int(process.pid), None)
        row["steps"][name] = {"code": code, "seconds": time.perf_counter() - began}
        if code:
            return row
    process.stdin.write("again\n")
    process.stdin.flush()
    row["memory"] = process.stdout.readline().strip()
    return {**row, "ok": row["memory"] == "same"}


def main(out):
    cuda, rows = Cuda(), []
    with contextlib.ExitStack() as all_of_them:
        processes = []
        for case in CASES:
            processes.append(start(case))
            all_of_them.callback(processes[-1].kill)
        for case, process in zip(CASES, processes, strict=True):
            rows.append(measure(cuda, case, process))
            print(
                *case, {name: step["code"] for name, step in rows[-1]["steps"].items()}, rows[-1].get("memory", rows[-1].get("error", "")), flush=True
            )
            out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(Path(sys.argv[1]))
    else:
        serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
