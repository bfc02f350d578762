"""Counts on the GPU, printing each number: 64 threads add one to 64 numbers, which must stay equal.

`bump.py [STEPS]`; a failing CUDA call is printed with its code and ends the program with 1.
"""

import ctypes
import sys
import time

THREADS = 64
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry bump(.param .u64 numbers)
{
  .reg .u64 %address, %offset;
  .reg .u32 %thread, %number;
  ld.param.u64 %address, [numbers];
  cvta.to.global.u64 %address, %address;
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %offset, %thread, 4;
  add.u64 %address, %address, %offset;
  ld.global.u32 %number, [%address];
  add.u32 %number, %number, 1;
  st.global.u32 [%address], %number;
  ret;
}
\0"""

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        print(f"{name} failed: {code}", flush=True)
        sys.exit(1)


device, context = ctypes.c_int(), ctypes.c_void_p()
module, kernel, numbers = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ctypes.byref(module), PTX)
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"bump")
call("cuMemAlloc_v2", ctypes.byref(numbers), 4 * THREADS)
call("cuMemsetD32_v2", numbers, 0, THREADS)
pinned = ctypes.c_void_p()
call("cuMemHostAlloc", ctypes.byref(pinned), 4 * THREADS, 0)
seen = (ctypes.c_uint32 * THREADS).from_address(pinned.value)
parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(numbers), ctypes.c_void_p))
for _step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10**9):
    call("cuLaunchKernel", kernel, 1, 1, 1, THREADS, 1, 1, 0, None, parameters, None)
    call("cuMemcpyDtoH_v2", seen, numbers, 4 * THREADS)
    assert len(set(seen)) == 1, list(seen)
    print(seen[0], flush=True)
    time.sleep(0.02)
