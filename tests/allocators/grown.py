"""Memory that is hidden and grows where some of it was given up: what it grows by is zero.

grown.py GO SECONDS
"""

import ctypes
import mmap
import os
import sys
import time

MB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
ALL = mmap.PROT_READ | mmap.PROT_WRITE


def main():
    start = libc.mmap(None, 2 * MB, ALL, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memset(start, 7, 2 * MB)
    print("ready", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.005)
    assert libc.munmap(start + MB, MB) == 0
    assert libc.mprotect(start, MB, mmap.PROT_NONE if hasattr(mmap, "PROT_NONE") else 0) == 0
    assert libc.mremap(start, MB, 2 * MB, 0) == start
    assert libc.mprotect(start, 2 * MB, ALL) == 0
    found = ctypes.string_at(start, 2 * MB)
    print("ok" if found == bytes([7]) * MB + bytes(MB) else "what it grew by is not zero", flush=True)


main()
