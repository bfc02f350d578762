"""Takes all of a GPU's free memory but so many bytes, and holds it: `ready` when it has.

python fill.py BYTES
"""

import ctypes
import sys
import time

CHUNK = 64 << 20


def main():
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        code = getattr(driver, name)(*arguments)
        if code:
            sys.exit(f"{name}: error {code}")

    context, free, total, address = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    while True:
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        if free.value < int(sys.argv[1]) + CHUNK:
            break
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(CHUNK))
    print("ready", free.value, total.value, flush=True)
    time.sleep(3600)


main()
