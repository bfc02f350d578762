"""A process that uses memory of one that has freed part of it, and then ended.

The owner gives two allocations and an event, frees the first, and ends. The other prints what both hold, again and again.
"""

import subprocess
import sys
import time

from driver import SIZE, Cuda, Handle


def owner():
    cuda = Cuda()
    first, second, event = cuda.allocate(4 << 20), cuda.allocate(4 << 20), cuda.event()
    for number, memory in enumerate((first, second)):
        cuda("cuMemsetD32_v2", memory, number + 7, SIZE)
    cuda("cuEventRecord", event, cuda.stream)
    print(cuda.memory_handle(first), cuda.memory_handle(second), cuda.event_handle(event), flush=True)
    sys.stdin.readline()
    cuda("cuMemFree_v2", first)
    sys.stdin.readline()


def user():
    cuda = Cuda()
    other = subprocess.Popen([sys.executable, __file__, "owner"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first, second, event = other.stdout.readline().split()
    memories = [cuda.open_memory(Handle.of(handle)) for handle in (first, second)]
    event = cuda.open_event(Handle.of(event))
    other.communicate("free\nend\n")
    while True:
        cuda("cuStreamWaitEvent", cuda.stream, event, 0)
        print(*(cuda.hash(memory) for memory in memories), flush=True)
        cuda("cuEventRecord", event, cuda.stream)
        cuda("cuEventSynchronize", event)
        time.sleep(0.05)


if len(sys.argv) > 1:
    owner()
else:
    user()
