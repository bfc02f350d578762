"""A GPU program as large as one of PyTorch's where it matters to a restore: libraries, threads, mappings.

`program.py FOLDER MEGABYTES THREADS`: when `FOLDER/go` has a new number, it answers with one line.
"""

import ctypes
import os
import sys
import threading
import time

import matplotlib.pyplot  # noqa: F401
import numba  # noqa: F401
import numpy

folder, megabytes, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
held = [numpy.random.default_rng(at).integers(0, 255, 1 << 20, dtype=numpy.uint8) for at in range(megabytes)]
for _ in range(threads):
    threading.Thread(target=threading.Event().wait, daemon=True).start()

cuda = ctypes.CDLL("libcuda.so.1")
context, numbers = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(numbers), 4096) == 0
assert cuda.cuMemsetD32_v2(numbers, 7, 1024) == 0
seen = (ctypes.c_uint32 * 1024)()
answered = ""
print("ready", flush=True)
while True:
    asked = open(f"{folder}/go").read() if os.path.exists(f"{folder}/go") else ""
    if asked != answered:
        assert cuda.cuMemcpyDtoH_v2(seen, numbers, 4096) == 0
        assert set(seen) == {7}
        answered = asked
        print(f"{answered} {time.time()} {sum(int(block[0]) for block in held)}", flush=True)
    time.sleep(0.001)
