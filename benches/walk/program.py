"""What CRIU finds in a small PyTorch program that uses a GPU, without PyTorch: many mappings of libraries, memory in many
pieces, threads that wait, and a driver (the stand-in of the tests) that takes its GPU half into its memory.

program.py FILE-MAPPINGS MEGABYTES THREADS
"""

import ctypes
import mmap
import os
import sys
import threading
from pathlib import Path

PAGE = 4096
PIECE = 1 << 20
# Of the pages of a piece so many are written in a row, and then one left out.
ROW = 15
PROT_NONE, MAP_FAILED = 0, ctypes.c_void_p(-1).value

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def check(worked, what):
    if not worked:
        raise OSError(ctypes.get_errno(), what)


def map_private(bytes_, protection, file=-1, offset=0):
    flags = mmap.MAP_PRIVATE | (mmap.MAP_ANONYMOUS if file < 0 else 0)
    address = libc.mmap(None, bytes_, protection, flags, file, offset)
    check(address != MAP_FAILED, "mmap")
    return address


def libraries():
    """Shared libraries of this machine, the large ones first: what is loaded together comes from many files."""
    found = {path.resolve() for root in ("/usr/lib", "/lib") for path in Path(root).rglob("*.so*") if path.is_file()}
    return sorted(found, key=lambda path: (-path.stat().st_size, path))


def load(path, rest):
    """Maps a file as a loader does: code, constants, and data of which every other page is written. How many mappings."""
    pages = path.stat().st_size // PAGE
    if pages < 8:
        return 0
    with open(path, "rb") as file:
        quarter = pages // 4 * PAGE
        base = map_private(4 * quarter, mmap.PROT_READ, file.fileno())
    check(libc.mprotect(base + quarter, quarter, mmap.PROT_READ | mmap.PROT_EXEC) == 0, "mprotect")
    data = min(quarter, 64 * PAGE)
    check(libc.mprotect(base + 3 * quarter, data, mmap.PROT_READ | mmap.PROT_WRITE) == 0, "mprotect")
    for at in range(0, data, 2 * PAGE):
        ctypes.memset(base + 3 * quarter + at, 1, 8)
    return min(rest, 5)


def touch(number):
    """A piece of memory with pages left out, most of the others zero, and nothing mapped for use behind it."""
    base = map_private(PIECE + PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
    check(libc.mprotect(base + PIECE, PAGE, PROT_NONE) == 0, "mprotect")
    for at in range(0, PIECE - ROW * PAGE, (ROW + 1) * PAGE):
        ctypes.memset(base + at, 0, ROW * PAGE)
        ctypes.memset(base + at, number % 255 + 1, PAGE)


def main():
    mappings, megabytes, threads = map(int, sys.argv[1:])
    driver = ctypes.CDLL(os.environ["REKINDLE_LIBCUDA"])
    for path in libraries():
        if mappings <= 0:
            break
        mappings -= load(path, mappings)
    for number in range(megabytes * 16 // ROW):
        touch(number)
    never = threading.Event()
    for _ in range(threads):
        threading.Thread(target=never.wait, daemon=True).start()
    assert driver.cuInit(0) == 0
    driver.standin_begin(0)
    print("ready", flush=True)
    never.wait()


main()
