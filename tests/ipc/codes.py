"""What the functions of CUDA IPC return, also where they fail: the same lines with Rekindle and without.

`codes.py`: prints `WHAT CODE`, a line each, and the handle of memory that it does not free. `codes.py wait`: does not end then.
`codes.py HANDLE`: opens a handle of another program's.
"""

import ctypes
import subprocess
import sys
import time

from driver import LAZY_PEER_ACCESS, SIZE, Cuda, Handle


def say(what, *words):
    print(what, *words, flush=True)


def open_code(cuda, handle, flags=LAZY_PEER_ACCESS):
    return cuda.code("cuIpcOpenMemHandle_v2", ctypes.byref(ctypes.c_uint64()), handle, flags)


def own(cuda):
    """Handles in the process that has what they stand for."""
    memory, handle, again = cuda.allocate(4 << 20), Handle(), Handle()
    get = "cuIpcGetMemHandle"
    say("get", cuda.code(get, ctypes.byref(handle), memory))
    cuda(get, ctypes.byref(again), memory)
    say("get-again-same", int(bytes(handle.bytes) == bytes(again.bytes)))
    cuda(get, ctypes.byref(again), ctypes.c_uint64(memory.value + 512))
    say("get-inside-same", int(bytes(handle.bytes) == bytes(again.bytes)))
    say("get-nowhere", cuda.code(get, ctypes.byref(handle), ctypes.c_uint64(12 << 20)))
    pinned, managed, pooled = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
    cuda("cuMemHostAlloc", ctypes.byref(pinned), 4096, 0)
    cuda("cuMemAllocManaged", ctypes.byref(managed), 4096, 1)
    cuda("cuMemAllocAsync", ctypes.byref(pooled), 4 << 20, cuda.stream)
    say("get-pinned", cuda.code(get, ctypes.byref(again), ctypes.c_uint64(pinned.value)))
    say("get-managed", cuda.code(get, ctypes.byref(again), managed))
    say("get-pooled", cuda.code(get, ctypes.byref(again), pooled))
    say("open-own", open_code(cuda, cuda.memory_handle(memory)))
    say("open-flags", open_code(cuda, cuda.memory_handle(memory), 0))
    say("open-zeros", open_code(cuda, Handle()))
    say("close-own", cuda.code("cuIpcCloseMemHandle", memory))
    plain, shared = cuda.event(2), cuda.event()
    timed = cuda.code("cuEventCreate", ctypes.byref(ctypes.c_void_p()), 4)
    say("event-with-time", timed)
    say("event-get-plain", cuda.code("cuIpcGetEventHandle", ctypes.byref(again), plain))
    say("event-get", cuda.code("cuIpcGetEventHandle", ctypes.byref(handle), shared))
    say("event-open-own", cuda.code("cuIpcOpenEventHandle", ctypes.byref(ctypes.c_void_p()), handle))
    say("event-open-zeros", cuda.code("cuIpcOpenEventHandle", ctypes.byref(ctypes.c_void_p()), Handle()))
    say("event-query-unrecorded", cuda.code("cuEventQuery", shared))
    say("event-elapsed", cuda.code("cuEventElapsedTime", ctypes.byref(ctypes.c_float()), shared, shared))
    return memory


def child():
    """In another process; lines of input say what it is to do."""
    cuda = Cuda()
    memory, small, freed = (Handle.of(sys.stdin.readline().strip()) for _ in range(3))
    say("open-freed", open_code(cuda, freed))
    first, second = cuda.open_memory(memory), cuda.open_memory(memory)
    say("open-twice-same", int(first.value == second.value))
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    cuda("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(first.value + 5))
    say("range", int(base.value == first.value), size.value)
    say("export-again", cuda.code("cuIpcGetMemHandle", ctypes.byref(Handle()), first))
    say("free", cuda.code("cuMemFree_v2", first))
    say("close", cuda.code("cuIpcCloseMemHandle", first))
    # Still open once.
    say("after-one-close", cuda.hash(first))
    say("close-inside", cuda.code("cuIpcCloseMemHandle", ctypes.c_uint64(first.value + 512)))
    say("close-last", cuda.code("cuIpcCloseMemHandle", first))
    say("close-once-more", cuda.code("cuIpcCloseMemHandle", first))
    little = cuda.open_memory(small)
    say("small", cuda.hash(little, 64))
    cuda("cuMemsetD32_v2", little, 9, 16)
    cuda("cuCtxSynchronize")
    say("done", 0)
    sys.stdin.readline()


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "child":
        return child()
    cuda = Cuda()
    if word not in ("", "wait"):
        say("open-of-another-program", open_code(cuda, Handle.of(word)))
        return None
    memory = own(cuda)
    gone = cuda.allocate(8 << 20)
    freed = cuda.memory_handle(gone)
    cuda("cuMemFree_v2", gone)
    small = [cuda.allocate(64) for _ in range(3)]
    for address in [memory, *small]:
        cuda("cuMemsetD32_v2", address, 5, 16)
    cuda("cuMemsetD32_v2", memory, 5, SIZE)
    cuda("cuCtxSynchronize")
    other = subprocess.Popen([sys.executable, __file__, "child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    other.stdin.write(f"{cuda.memory_handle(memory)}\n{cuda.memory_handle(small[1])}\n{freed}\n")
    other.stdin.flush()
    for line in other.stdout:
        say(line.strip())
        if line.startswith("done"):
            break
    # What the other wrote, and no more.
    say("smalls", *(cuda.hash(address, 64) for address in small))
    other.stdin.close()
    say("child-ended", other.wait())
    say("handle", cuda.memory_handle(memory))
    while word == "wait":
        time.sleep(1)
    return None


main()
