"""Adds to a number by one kernel after the other, each of a module of its own with so many lines.

`program.py MODULES LINES`: prints the number at each step.
"""

import ctypes
import sys
import time

modules, lines = map(int, sys.argv[1:])
TEXT = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 number)
{{
  .reg .u64 %address;
  .reg .u32 %value, %more;
  ld.param.u64 %address, [number];
  cvta.to.global.u64 %address, %address;
  ld.global.u32 %value, [%address];
  mov.u32 %more, {number};
{body}
  add.u32 %value, %value, %more;
  st.global.u32 [%address], %value;
  ret;
}}
"""

cuda = ctypes.CDLL("libcuda.so.1")
context, place, seen = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
body = "\n".join(f"  {'sub' if line % 2 else 'add'}.u32 %more, %more, {line // 2};" for line in range(lines // 2 * 2))
kernels = []
for number in range(modules):
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), TEXT.format(number=number, body=body).encode()) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"add") == 0
    kernels.append(kernel)
assert cuda.cuMemAlloc_v2(ctypes.byref(place), 4) == 0
assert cuda.cuMemsetD32_v2(place, 0, 1) == 0
parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(place), ctypes.c_void_p))
while True:
    for kernel in kernels:
        assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None) == 0
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(seen), place, 4) == 0
    print(seen.value, flush=True)
    time.sleep(0.02)
