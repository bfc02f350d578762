"""Processes that step the same numbers on the GPU in turn, by CUDA IPC, and nobody waits for the GPU on the CPU but to print.

`relay.py COUNT`: the first allocates, and gives the others its memory and an event; each of the others gives it an event. In a
step the first steps the numbers and records its event, each of the others in turn waits for the one before, steps them in its
own mapping, and records. The first prints `STEP HASH`, and the others where they have the memory. With `RELAY_BYTES` the
numbers lie in so many bytes, at the end. With `RELAY_GRAPHS` the others step by a graph that also copies the numbers to memory of
their own and back.
"""

import ctypes
import os
import socket
import subprocess
import sys
import time

from driver import SIZE, Cuda, Handle


def tell(line, *words):
    line.write(" ".join(map(str, words)) + "\n")
    line.flush()


def first(count):
    cuda, room = Cuda(), int(os.environ.get("RELAY_BYTES", 4 * SIZE))
    memory = cuda.allocate(room)
    cuda("cuMemsetD32_v2", memory, 7, room // 4)
    cuda("cuCtxSynchronize")
    numbers = ctypes.c_uint64(memory.value + room - 4 * SIZE)
    handle, mine = cuda.memory_handle(memory), cuda.event()
    others = []
    for number in range(1, count):
        here, there = socket.socketpair()
        subprocess.Popen([sys.executable, __file__, str(count), str(number), str(there.fileno())], pass_fds=[there.fileno()])
        there.close()
        line = here.makefile("rw")
        before = others[-1][1] if others else cuda.event_handle(mine)
        tell(line, handle, before, room)
        theirs = Handle.of(line.readline().strip())
        others.append((line, theirs, cuda.open_event(theirs)))
    step = 0
    while True:
        step += 1
        cuda.step(numbers, 3)
        cuda("cuEventRecord", mine, cuda.stream)
        for line, _, _ in others:
            tell(line, "go")
            assert line.readline() == "done\n"
        cuda("cuStreamWaitEvent", cuda.stream, others[-1][2], 0)
        os.write(1, f"{step} {cuda.hash(numbers)}\n".encode())
        time.sleep(0.02)


def other(number, line):
    cuda = Cuda()
    handle, before, room = line.readline().split()
    memory = cuda.open_memory(Handle.of(handle))
    numbers = ctypes.c_uint64(memory.value + int(room) - 4 * SIZE)
    before, mine = cuda.open_event(Handle.of(before)), cuda.event()
    own, factor = cuda.allocate(4 * SIZE), 2 * number + 3

    def by_copies():
        cuda("cuMemcpyDtoDAsync_v2", own, numbers, 4 * SIZE, cuda.stream)
        cuda.step(own, factor)
        cuda("cuMemcpyDtoDAsync_v2", numbers, own, 4 * SIZE, cuda.stream)

    instance = cuda.instance(by_copies) if os.environ.get("RELAY_GRAPHS") else None
    tell(line, cuda.event_handle(mine))
    os.write(1, f"at {number} {memory.value:#x}\n".encode())
    while line.readline():
        cuda("cuStreamWaitEvent", cuda.stream, before, 0)
        if instance:
            cuda("cuGraphLaunch", instance, cuda.stream)
        else:
            cuda.step(numbers, factor)
        cuda("cuEventRecord", mine, cuda.stream)
        tell(line, "done")


def main():
    count = int(sys.argv[1])
    if len(sys.argv) > 2:
        other(int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])).makefile("rw"))
    else:
        first(count)


main()
