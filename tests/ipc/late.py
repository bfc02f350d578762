"""A process that has a handle and opens it as soon as it may, again and again: the owner has its memory, or is not back yet.

Prints `STEP HASH` for each time; the hash is always the same.
"""

import subprocess
import sys
import time

from driver import Cuda, Handle

BYTES = 64 << 20


def owner():
    cuda = Cuda()
    memory = cuda.allocate(BYTES)
    cuda("cuMemsetD32_v2", memory, 7, BYTES // 4)
    cuda("cuCtxSynchronize")
    print(cuda.memory_handle(memory), flush=True)
    sys.stdin.readline()


def user():
    cuda = Cuda()
    other = subprocess.Popen([sys.executable, __file__, "owner"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    handle, step = Handle.of(other.stdout.readline().strip()), 0
    while True:
        memory = cuda.open_memory(handle)
        step += 1
        print(step, cuda.hash(memory), flush=True)
        cuda("cuIpcCloseMemHandle", memory)
        time.sleep(0.02)


if len(sys.argv) > 1:
    owner()
else:
    user()
