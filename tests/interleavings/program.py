"""Counts on the GPU beside the CPU, which must always agree, for as long as GO is there.

program.py GO SEED

Weights that nothing writes to, numbers that each step changes, and buffers that come and go; pinned memory with every
second seed.
"""

import ctypes
import os
import random
import sys
import time

GO, SEED = sys.argv[1], int(sys.argv[2])
THREADS, WEIGHTS, MOST = 64, 3 << 20, 4
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry step(.param .u64 numbers, .param .u64 weights)
{
  .reg .u64 %address, %offset, %weights;
  .reg .u32 %thread, %number, %weight;
  ld.param.u64 %address, [numbers];
  ld.param.u64 %weights, [weights];
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %offset, %thread, 4;
  add.u64 %address, %address, %offset;
  add.u64 %weights, %weights, %offset;
  ld.global.u32 %number, [%address];
  ld.global.u32 %weight, [%weights];
  mad.lo.u32 %number, %number, 1664525, %weight;
  st.global.u32 [%address], %number;
  ret;
}
\0"""

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise SystemExit(f"{name} failed: {code}")


def allocate(contents):
    buffer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(buffer), len(contents))
    call("cuMemcpyHtoD_v2", buffer, contents, len(contents))
    return buffer


def same(buffer, contents, start=0):
    seen = ctypes.create_string_buffer(len(contents))
    call("cuMemcpyDtoH_v2", seen, ctypes.c_uint64(buffer.value + start), len(contents))
    return seen.raw == contents


device, context = ctypes.c_int(), ctypes.c_void_p()
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ctypes.byref(module), PTX)
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"step")
rng = random.Random(SEED)
fixed = rng.randbytes(WEIGHTS)
weights, numbers = allocate(fixed), allocate(bytes(4 * THREADS))
expected = [0] * THREADS
seen = (ctypes.c_uint32 * THREADS)()
if SEED % 2:
    pinned = ctypes.c_void_p()
    call("cuMemHostAlloc", ctypes.byref(pinned), 4 * THREADS, 0)
    seen = (ctypes.c_uint32 * THREADS).from_address(pinned.value)
others = []
count = 0
while True:
    print(count, flush=True)
    while not os.path.exists(GO):
        time.sleep(0.005)
    at = 4 * THREADS * rng.randrange(WEIGHTS // (4 * THREADS))
    part = [int.from_bytes(fixed[at + 4 * n : at + 4 * n + 4], "little") for n in range(THREADS)]
    arguments = (ctypes.c_uint64 * 2)(numbers.value, weights.value + at)
    parameters = (ctypes.c_void_p * 2)(*(ctypes.addressof(arguments) + 8 * n for n in range(2)))
    call("cuLaunchKernel", kernel, 1, 1, 1, THREADS, 1, 1, 0, None, parameters, None)
    expected = [(number * 1664525 + weight) % 2**32 for number, weight in zip(expected, part)]
    call("cuMemcpyDtoH_v2", seen, numbers, 4 * THREADS)
    assert list(seen) == expected, f"step {count}: {list(seen)[:4]} in place of {expected[:4]}"
    if len(others) < MOST and rng.random() < 0.5:
        contents = rng.randbytes(rng.choice([100, 5000, 1 << 20]))
        others.append((allocate(contents), contents))
    elif others:
        buffer, contents = others.pop(rng.randrange(len(others)))
        assert same(buffer, contents), f"step {count}: a buffer of {len(contents)} bytes"
        call("cuMemFree_v2", buffer)
    assert count % 8 or same(weights, fixed), f"step {count}: weights"
    count += 1
    time.sleep(0.005)
