"""Adds to a number on the GPU by one kernel after the other, each of a module of its own, and prints it at each step.

`modules.py NUMBER...`: the kernel of module N adds N; that of a module `gN` has N in a global, and that of `sN` has N put
into one by the program. First a line says how much
device memory is free; a failing CUDA call is printed with its code and ends the program.
"""

import ctypes
import sys
import time

CONSTANT = """
.version 7.0
.target sm_70
.address_size 64
{variables}
.visible .entry add(.param .u64 number)
{{
  .reg .u64 %address, %place;
  .reg .u32 %value, %more;
  ld.param.u64 %address, [number];
  cvta.to.global.u64 %address, %address;
  ld.global.u32 %value, [%address];
  {more};
  add.u32 %value, %value, %more;
  st.global.u32 [%address], %value;
  ret;
}}
"""

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        print(f"{name} failed: {code}", flush=True)
        sys.exit(1)


def kernel(number):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    variables, more = "", f"mov.u32 %more, {number.lstrip('gs')}"
    if number[0] in "gs":
        first = number[1:] if number[0] == "g" else 0
        variables, more = f".visible .global .u32 step = {first};", "ld.global.u32 %more, [step]"
    call("cuModuleLoadData", ctypes.byref(module), CONSTANT.format(variables=variables, more=more).encode())
    call("cuModuleGetFunction", ctypes.byref(function), module, b"add")
    if number.startswith("s"):
        step, size = ctypes.c_uint64(), ctypes.c_size_t()
        call("cuModuleGetGlobal_v2", ctypes.byref(step), ctypes.byref(size), module, b"step")
        call("cuMemcpyHtoD_v2", step, ctypes.byref(ctypes.c_uint32(int(number[1:]))), 4)
    return function


context, place, seen = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
kernels = [kernel(number) for number in sys.argv[1:]]
print(f"{free.value} of {total.value} free", flush=True)
call("cuMemAlloc_v2", ctypes.byref(place), 4)
call("cuMemsetD32_v2", place, 0, 1)
parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(place), ctypes.c_void_p))
while True:
    for add in kernels:
        call("cuLaunchKernel", add, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
    call("cuMemcpyDtoH_v2", ctypes.byref(seen), place, 4)
    print(seen.value, flush=True)
    time.sleep(0.02)
