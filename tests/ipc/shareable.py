"""Processes that step the same numbers on the GPU in turn, in memory that they have from each other as file descriptors.

`shareable.py COUNT`: the first has memory of `cuMemCreate` and of a pool. The second process inherits descriptors of both, and
others get them by `SCM_RIGHTS`. In a step each in turn steps both in its own mapping. The first prints `STEP HASH` of all. Once
the file `SHAREABLE_LATE` is there another process begins, imports both from the descriptors that the first has kept, says the
same, and ends; then the first prints `late`. `SHAREABLE_BYTES` is how large the memory is.
"""

import ctypes
import os
import socket
import subprocess
import sys
import time

from driver import SIZE, Cuda, Handle

POSIX_DESCRIPTOR, PINNED, DEVICE, READ_WRITE = 1, 1, 1, 3


class Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = [
        ("kind", ctypes.c_uint),
        ("handles", ctypes.c_uint),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class PoolProperties(ctypes.Structure):
    """`CUmemPoolProps`."""

    _fields_ = [
        ("kind", ctypes.c_uint),
        ("handles", ctypes.c_uint),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("more", ctypes.c_ubyte * 64),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_uint)]


class Shared:
    """Both kinds of memory, in a process."""

    def __init__(self, cuda):
        self.cuda, self.memory, self.pool = cuda, ctypes.c_void_p(), ctypes.c_void_p()
        self.where = Location(DEVICE, 0)
        self.properties = Properties(PINNED, POSIX_DESCRIPTOR, self.where)
        granularity = ctypes.c_size_t()
        cuda("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(self.properties), 0)
        wanted = int(os.environ.get("SHAREABLE_BYTES", 4 * SIZE))
        self.size = -(-wanted // granularity.value) * granularity.value
        self.mapped, self.pooled = ctypes.c_uint64(), ctypes.c_uint64()

    def map(self):
        size = ctypes.c_size_t(self.size)
        self.cuda("cuMemAddressReserve", ctypes.byref(self.mapped), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        self.cuda("cuMemMap", self.mapped, size, ctypes.c_size_t(0), self.memory, ctypes.c_uint64(0))
        access = Access(self.where, READ_WRITE)
        self.cuda("cuMemSetAccess", self.mapped, size, ctypes.byref(access), ctypes.c_size_t(1))

    def make(self):
        self.cuda("cuMemCreate", ctypes.byref(self.memory), ctypes.c_size_t(self.size), ctypes.byref(self.properties), ctypes.c_uint64(0))
        self.map()
        properties = PoolProperties(PINNED, POSIX_DESCRIPTOR, self.where)
        self.cuda("cuMemPoolCreate", ctypes.byref(self.pool), ctypes.byref(properties))
        self.cuda("cuMemAllocFromPoolAsync", ctypes.byref(self.pooled), ctypes.c_size_t(4 * SIZE), self.pool, self.cuda.stream)
        for numbers in (self.mapped, self.pooled):
            self.cuda("cuMemsetD32Async", numbers, 7, ctypes.c_size_t(SIZE), self.cuda.stream)
        self.cuda("cuStreamSynchronize", self.cuda.stream)
        # Its own descriptor gives it its own memory.
        own, again = self.descriptors()[0], ctypes.c_void_p()
        self.cuda("cuMemImportFromShareableHandle", ctypes.byref(again), ctypes.c_void_p(own), POSIX_DESCRIPTOR)
        self.cuda("cuMemRelease", again)
        os.close(own)
        return self

    def descriptors(self):
        memory, pool = ctypes.c_int(), ctypes.c_int()
        self.cuda("cuMemExportToShareableHandle", ctypes.byref(memory), self.memory, POSIX_DESCRIPTOR, ctypes.c_uint64(0))
        self.cuda("cuMemPoolExportToShareableHandle", ctypes.byref(pool), self.pool, POSIX_DESCRIPTOR, ctypes.c_uint64(0))
        return memory.value, pool.value

    def pointer(self):
        data = Handle()
        self.cuda("cuMemPoolExportPointer", ctypes.byref(data), self.pooled)
        return data

    def take(self, memory, pool, pointer):
        self.cuda("cuMemImportFromShareableHandle", ctypes.byref(self.memory), ctypes.c_void_p(memory), POSIX_DESCRIPTOR)
        self.cuda("cuMemPoolImportFromShareableHandle", ctypes.byref(self.pool), ctypes.c_void_p(pool), POSIX_DESCRIPTOR, ctypes.c_uint64(0))
        self.map()
        # The mapping keeps the memory.
        self.cuda("cuMemRelease", self.memory)
        self.cuda("cuMemPoolImportPointer", ctypes.byref(self.pooled), self.pool, ctypes.byref(pointer))
        assert self.cuda.code("cuMemAllocFromPoolAsync", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(64), self.pool, None) != 0
        return self

    def step(self, factor):
        for numbers in (self.mapped, self.pooled):
            self.cuda.step(numbers, factor)
        self.cuda("cuStreamSynchronize", self.cuda.stream)

    def hash(self):
        return self.cuda.hash(self.mapped) + self.cuda.hash(self.pooled)


def begin(number, line, *descriptors):
    arguments = [sys.executable, __file__, "other", str(number), str(line), *map(str, descriptors)]
    return subprocess.Popen(arguments, pass_fds=[line, *descriptors])


def say(here, pointer, descriptors):
    socket.send_fds(here, [str(pointer).encode() + b"\n"], descriptors)


def first(count):
    shared, others = Shared(Cuda()).make(), []
    kept = shared.descriptors()
    for number in range(1, count):
        here, there = socket.socketpair()
        begin(number, there.fileno(), *(kept if number == 1 else ()))
        there.close()
        say(here, shared.pointer(), () if number == 1 else kept)
        others.append((here, here.makefile("rw")))
    step, late = 0, os.environ.get("SHAREABLE_LATE", "")
    while True:
        step += 1
        shared.step(3)
        for here, line in others:
            here.sendall(b"go\n")
            assert line.readline() == "done\n"
        found = shared.hash()
        if os.path.exists(late):
            here, there = socket.socketpair()
            process = begin(0, there.fileno(), *kept)
            there.close()
            say(here, shared.pointer(), ())
            assert here.makefile().readline().strip() == found
            assert process.wait() == 0
            here.close()
            late = ""
            os.write(1, b"late\n")
        os.write(1, f"{step} {found}\n".encode())
        time.sleep(0.02)


def other(number, line, descriptors):
    here = socket.socket(fileno=line)
    # No more than the line, behind which the first step may have begun.
    text, sent, _, _ = socket.recv_fds(here, 2 * ctypes.sizeof(Handle) + 1, 2)
    pointer = Handle.of(text.decode().strip())
    shared = Shared(Cuda()).take(*(descriptors or sent), pointer)
    for descriptor in descriptors or sent:
        os.close(descriptor)
    if number == 0:
        here.sendall(f"{shared.hash()}\n".encode())
        shared.cuda("cuMemFreeAsync", shared.pooled, shared.cuda.stream)
        shared.cuda("cuMemUnmap", shared.mapped, ctypes.c_size_t(shared.size))
        return
    for _ in here.makefile():
        shared.step(2 * number + 3)
        here.sendall(b"done\n")


if sys.argv[1] == "other":
    other(int(sys.argv[2]), int(sys.argv[3]), [int(word) for word in sys.argv[4:]])
else:
    first(int(sys.argv[1]))
