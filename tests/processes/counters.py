"""Processes that use the GPU side by side: the first starts the others, and each steps through numbers of its own there.

`counters.py COUNT [NUMBER]`: after each step a process prints `NUMBER STEP HASH`. The hash is of all that it has on the GPU and in
pinned memory, and always the same for a number and a step. Each has `COUNTERS_BYTES` more on the GPU, if that is set, and the last
one `COUNTERS_LAST_BYTES`. While the file `COUNTERS_PAUSE` is there they do nothing.
"""

import ctypes
import hashlib
import os
import subprocess
import sys
import time

SIZE = 4096
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 steps;
.visible .entry step(.param .u64 numbers, .param .u32 factor)
{
  .reg .u64 %address, %offset, %steps;
  .reg .u32 %thread, %block, %width, %number, %factor, %count;
  ld.param.u64 %address, [numbers];
  ld.param.u32 %factor, [factor];
  cvta.to.global.u64 %address, %address;
  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %width, %ntid.x;
  mad.lo.u32 %thread, %block, %width, %thread;
  mul.wide.u32 %offset, %thread, 4;
  add.u64 %address, %address, %offset;
  ld.global.u32 %number, [%address];
  mad.lo.u32 %number, %number, %factor, %thread;
  mov.u64 %steps, steps;
  ld.global.u32 %count, [%steps];
  add.u32 %number, %number, %count;
  st.global.u32 [%address], %number;
  ret;
}
.visible .entry count()
{
  .reg .u64 %steps;
  .reg .u32 %count;
  mov.u64 %steps, steps;
  ld.global.u32 %count, [%steps];
  add.u32 %count, %count, 1;
  st.global.u32 [%steps], %count;
  ret;
}
\0"""


class Counter:
    def __init__(self, number, is_last):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.step_kernel, self.count_kernel, self.stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.numbers, pinned = ctypes.c_uint64(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.step_kernel), module, b"step")
        self.call("cuModuleGetFunction", ctypes.byref(self.count_kernel), module, b"count")
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.call("cuMemAlloc_v2", ctypes.byref(self.numbers), 4 * SIZE)
        self.call("cuMemsetD32_v2", self.numbers, number, SIZE)
        self.call("cuMemHostAlloc", ctypes.byref(pinned), 4 * SIZE, 0)
        self.seen = (ctypes.c_uint32 * SIZE).from_address(pinned.value)
        self.call("cuCtxSynchronize")
        # Memory that is there and no more.
        more = [os.environ.get("COUNTERS_BYTES", 4), *([os.environ.get("COUNTERS_LAST_BYTES", 4)] if is_last else [])]
        for size in more:
            self.call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), int(size))
        self.factor = ctypes.c_uint32(2 * number + 1)
        self.words = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(word), ctypes.c_void_p) for word in (self.numbers, self.factor)))
        self.hash = hashlib.sha256()

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code:
            print(f"{name} failed: {code}", flush=True)
            sys.exit(1)

    def step(self):
        self.call("cuLaunchKernel", self.count_kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, None, None)
        self.call("cuLaunchKernel", self.step_kernel, SIZE // 256, 1, 1, 256, 1, 1, 0, self.stream, self.words, None)
        # What pinned memory holds from the step before is part of the next hash.
        self.hash.update(bytes(self.seen))
        self.call("cuMemcpyDtoHAsync_v2", self.seen, self.numbers, 4 * SIZE, self.stream)
        self.call("cuStreamSynchronize", self.stream)
        return self.hash.hexdigest()[:12]


def main():
    processes, number = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    counter, count = Counter(number, number == processes - 1), 0
    # A server first, and then its engines.
    for other in range(1, processes if number == 0 else 0):
        subprocess.Popen([sys.executable, __file__, str(processes), str(other)])
    pause = os.environ.get("COUNTERS_PAUSE", "")
    while True:
        while os.path.exists(pause):
            time.sleep(0.01)
        count += 1
        os.write(1, f"{number} {count} {counter.step()}\n".encode())
        time.sleep(0.02)


main()
