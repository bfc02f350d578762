"""Changes some of its memory at each turn, and says what all of it is then.

turns.py DIRECTORY    `ready`; then for each turn, once DIRECTORY/TURN is there: `TURN DIGEST`. DIRECTORY/exec has it become,
                      once, a program that begins with other memory: `ready` again.
"""

import ctypes
import hashlib
import mmap
import os
import random
import sys
import time
from pathlib import Path

PAGE = 4096
STILL = 8192
TURNED = 1024
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
C = ctypes.CDLL(None, use_errno=True)
C.mmap.restype = C.mremap.restype = ctypes.c_void_p
C.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
C.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
C.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
C.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
C.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Area:
    """Memory that is asked for, moved and given back as the kernel has it."""

    def __init__(self, pages, draw):
        self.bytes = pages * PAGE
        self.at = C.mmap(None, self.bytes, 3, PRIVATE, -1, 0)
        self.write(0, draw.randbytes(self.bytes))

    def write(self, page, contents):
        ctypes.memmove(self.at + page * PAGE, contents, len(contents))

    def digest(self, digest):
        digest.update(ctypes.string_at(self.at, self.bytes))


def in_another_place(area):
    """Something else where it was."""
    place = C.mmap(None, area.bytes, 0, PRIVATE, -1, 0)
    old = area.at
    area.at = C.mremap(old, area.bytes, area.bytes, 3, place)
    other = C.mmap(old, area.bytes, 3, PRIVATE | 0x10, -1, 0)
    assert area.at == place and other == old
    ctypes.memset(old, 0, area.bytes)
    C.munmap(old, area.bytes)


def given_back_and_new(area):
    """Unmapped, and mapped anew in the same place."""
    C.munmap(area.at, area.bytes)
    assert C.mmap(area.at, area.bytes, 3, PRIVATE | 0x10, -1, 0) == area.at
    area.write(3, b"new" * 100)


def given_back(area):
    assert C.madvise(area.at + 10 * PAGE, 300 * PAGE, mmap.MADV_DONTNEED) == 0
    area.write(20, b"again" * 2000)


def protected(area):
    """Unreadable in the middle, and read-only, and back."""
    for protection in (0, 1, 3):
        assert C.mprotect(area.at + 7 * PAGE, 200 * PAGE, protection) == 0
        time.sleep(0.001)
    area.write(8, b"x" * 5000)
    C.mprotect(area.at + 100 * PAGE, 50 * PAGE, 1)


def grown(area):
    area.at, area.bytes = C.mremap(area.at, area.bytes, area.bytes + (64 << 10), 1, None), area.bytes + (64 << 10)


def forked(area):
    """The child writes to what it has, the parent too while the child is there."""
    if not (child := os.fork()):
        area.write(1, b"child" * 1000)
        os._exit(0)
    area.write(2, b"parent" * 1000)
    assert os.waitpid(child, 0)[1] == 0


def dropped_partly(area):
    C.munmap(area.at + area.bytes // 2, area.bytes - area.bytes // 2)
    area.bytes //= 2


CHANGES = [in_another_place, given_back_and_new, given_back, protected, grown, forked, dropped_partly]


def main():
    directory = Path(sys.argv[1])
    draw = random.Random(os.environ.get("TURNS_SEED", "1"))
    still, turned = Area(STILL, draw), Area(TURNED, draw)
    changed = [Area(1024, draw) for _ in CHANGES]
    objects = {n: str(n) for n in range(50_000)}
    print("ready", flush=True)
    turn = 0
    while True:
        turn += 1
        while not (directory / str(turn)).exists():
            if (directory / "exec").exists() and "TURNS_SEED" not in os.environ:
                os.environ["TURNS_SEED"] = "2"
                os.execv(sys.executable, [sys.executable, *sys.argv])
            time.sleep(0.002)
        still.write(draw.randrange(STILL), draw.randbytes(100))
        for page in draw.sample(range(TURNED - 1), 200):
            turned.write(page, draw.randbytes(64))
        number = turn % (len(CHANGES) + 1)
        if number:
            CHANGES[number - 1](changed[number - 1])
        objects[turn * 11] = "changed" * turn
        digest = hashlib.sha256(repr(objects).encode())
        for area in (still, turned, *changed):
            area.digest(digest)
        print(turn, digest.hexdigest(), flush=True)


main()
