"""Has 6 MB on the GPU that do not compress and prints a number for each time that they are still the same.

weights.py [SEED [MEGABYTES [FILE]]]

With FILE it looks at them whenever that is there, and removes it.
"""

import ctypes
import os
import random
import sys
import time

SEED, MEGABYTES, FILE = sys.argv[1:] + ["7", "6", None][len(sys.argv) - 1 :]
SEED, MEGABYTES = int(SEED), int(MEGABYTES)
BYTES = MEGABYTES << 20

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise SystemExit(f"{name} failed: {code}")


device, context, weights = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(weights), BYTES)
expected = random.Random(SEED).randbytes(BYTES)
call("cuMemcpyHtoD_v2", weights, expected, BYTES)
seen = ctypes.create_string_buffer(BYTES)
step = 0
while True:
    while FILE and not os.path.exists(FILE):
        time.sleep(0.01)
    call("cuMemcpyDtoH_v2", seen, weights, BYTES)
    assert seen.raw == expected
    print(step, flush=True)
    step += 1
    if FILE:
        os.unlink(FILE)
    time.sleep(0.02)
