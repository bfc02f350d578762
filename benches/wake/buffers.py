"""Has so many buffers of 2 MB; whenever the file GO is there, prints how many seconds it takes to read one.

buffers.py COUNT GO
"""

import ctypes
import os
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise SystemExit(f"{name} failed: {code}")


device, context, buffer, word = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
for _ in range(int(sys.argv[1])):
    call("cuMemAlloc_v2", ctypes.byref(buffer), 2 << 20)
print("ready", flush=True)
while True:
    if os.path.exists(sys.argv[2]):
        os.unlink(sys.argv[2])
        start = time.perf_counter()
        call("cuMemcpyDtoH_v2", ctypes.byref(word), buffer, 4)
        print(time.perf_counter() - start, flush=True)
    time.sleep(0.005)
