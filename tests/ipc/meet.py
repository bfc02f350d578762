"""Processes whose kernels wait for each other's, as those of collectives do: no kernel of a step ends before all have begun.

`meet.py COUNT`: the first allocates flags and gives the others their memory. In each step a process's kernel raises its flag to
the step's number, and waits for those of all. The first prints `STEP HASH` of numbers that it steps too. The last is late with
each of its kernels by `MEET_LATE` seconds, which the others' wait for on the GPU.
"""

import ctypes
import os
import subprocess
import sys
import time

from driver import SIZE, Cuda, Handle

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry meet(.param .u64 flags, .param .u32 mine, .param .u32 count, .param .u32 step)
{
  .reg .u64 %flags, %flag, %offset;
  .reg .u32 %mine, %count, %step, %other, %found;
  .reg .pred %waits, %left;
  ld.param.u64 %flags, [flags];
  ld.param.u32 %mine, [mine];
  ld.param.u32 %count, [count];
  ld.param.u32 %step, [step];
  cvta.to.global.u64 %flags, %flags;
  mul.wide.u32 %offset, %mine, 4;
  add.u64 %flag, %flags, %offset;
  st.volatile.global.u32 [%flag], %step;
  membar.sys;
  mov.u32 %other, 0;
next:
  mul.wide.u32 %offset, %other, 4;
  add.u64 %flag, %flags, %offset;
again:
  ld.volatile.global.u32 %found, [%flag];
  setp.lt.u32 %waits, %found, %step;
  @%waits bra again;
  add.u32 %other, %other, 1;
  setp.lt.u32 %left, %other, %count;
  @%left bra next;
  ret;
}
\0"""


# Of the first, seconds: what it prints is to be read as fast as that.
PACE = 0.01


class Meeting:
    def __init__(self, number, count, flags):
        self.cuda, self.number, self.count = Cuda(), number, count
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.cuda("cuModuleLoadData", ctypes.byref(module), PTX)
        self.cuda("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"meet")
        self.flags = flags(self.cuda)

    def step(self, step):
        words = [self.flags, *(ctypes.c_uint32(value) for value in (self.number, self.count, step))]
        pointers = (ctypes.c_void_p * 4)(*(ctypes.cast(ctypes.byref(word), ctypes.c_void_p) for word in words))
        self.cuda("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, self.cuda.stream, pointers, None)


def first(count):
    meeting = Meeting(0, count, lambda cuda: cuda.allocate(4 * SIZE))
    cuda, numbers = meeting.cuda, meeting.cuda.allocate(4 * SIZE)
    cuda("cuMemsetD32_v2", meeting.flags, 0, SIZE)
    cuda("cuMemsetD32_v2", numbers, 7, SIZE)
    cuda("cuCtxSynchronize")
    handle = str(cuda.memory_handle(meeting.flags))
    for number in range(1, count):
        subprocess.Popen([sys.executable, __file__, str(count), str(number), handle])
    step = 0
    while True:
        step += 1
        meeting.step(step)
        cuda.step(numbers, 3)
        os.write(1, f"{step} {cuda.hash(numbers)}\n".encode())
        time.sleep(PACE)


def other(number, count, handle):
    meeting = Meeting(number, count, lambda cuda: cuda.open_memory(Handle.of(handle)))
    late = float(os.environ.get("MEET_LATE", 0)) if number == count - 1 else 0
    step = 0
    while True:
        step += 1
        time.sleep(late)
        meeting.step(step)
        meeting.cuda("cuStreamSynchronize", meeting.cuda.stream)


def main():
    if len(sys.argv) > 2:
        other(int(sys.argv[2]), int(sys.argv[1]), sys.argv[3])
    else:
        first(int(sys.argv[1]))


main()
