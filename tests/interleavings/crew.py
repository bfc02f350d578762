"""Processes with several threads, which go on when others of them are killed.

crew.py CHILDREN THREADS MEGABYTES GPU WRONG

Each shows in its name which it is and how far it has come, and writes into WRONG if it holds something else than it
should. GPU is "none", or who is on one: "root" with the CUDA driver API, "all" with the stand-in for the driver.
"""

import ctypes
import hashlib
import mmap
import os
import sys
import threading
import time

CHILDREN, THREADS, MEGABYTES = map(int, sys.argv[1:4])
GPU, WRONG = sys.argv[4:6]


def held(what, found, expected):
    if found != expected:
        with open(WRONG, "a") as out:
            out.write(f"process {number}, step {count}: {what} {found!r} in place of {expected!r}\n")


def count_beside(beside):
    while True:
        held("a thread's count", beside[0], beside[1])
        beside[0] += 1
        beside[1] += 1
        time.sleep(0.002)


root, number, count = os.getpid(), 0, 0
for child in range(1, CHILDREN + 1):
    if os.fork() == 0:
        number = child
        break
on_gpu = lambda count: None
if GPU == "all":
    driver = ctypes.CDLL(os.environ["REKINDLE_LIBCUDA"])
    driver.standin_count.restype = ctypes.c_ulonglong
    held("cuInit", driver.cuInit(0), 0)
    driver.standin_begin(number % 2)
    on_gpu = lambda count: held("on the GPU", driver.standin_count(0), count)
elif GPU == "root" and number == 0:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, buffer, device = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
    held("cuInit", cuda.cuInit(0), 0)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    held("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(buffer), 4 << 20), 0)
    cuda.cuMemsetD32_v2(buffer, 0, 1 << 20)

    def on_gpu(count):
        seen = (ctypes.c_uint32 * 4)()
        held("a copy from the GPU", cuda.cuMemcpyDtoH_v2(seen, buffer, 16), 0)
        held("on the GPU", list(seen), [count] * 4)
        held("a fill", cuda.cuMemsetD32_v2(buffer, count + 1, 1 << 20), 0)


fixed = mmap.mmap(-1, max(MEGABYTES, 1) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block = os.urandom(1 << 20)
for start in range(0, len(fixed), 1 << 20):
    fixed[start : start + (1 << 20)] = block
digest = hashlib.sha256(block).digest()
for _ in range(THREADS):
    threading.Thread(target=count_beside, args=([0, 0],), daemon=True).start()
while True:
    with open("/proc/self/comm", "w") as name:
        name.write(f"{number}/{CHILDREN + 1}:{count}")
    on_gpu(count)
    start = count % (len(fixed) >> 20) << 20
    held("memory", hashlib.sha256(fixed[start : start + (1 << 20)]).digest(), digest)
    # Those of one that was killed end too. It is never waited for.
    if number and os.getppid() != root:
        os._exit(137)
    count += 1
    time.sleep(0.02)
