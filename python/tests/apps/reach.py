"""A program that comes to declared data by an address that lies in memory: `reach.py URL COUNT WAY`, with a kernel that
follows a table's first address to a number."""

import ctypes
import sys
import time

import rekindle

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry follow(.param .u64 table, .param .u64 found)
{
  .reg .u64 %at, %found;
  .reg .u32 %number;
  ld.param.u64 %at, [table];
  ld.param.u64 %found, [found];
  ld.global.u64 %at, [%at];
  ld.global.u32 %number, [%at];
  st.global.u32 [%found], %number;
  ret;
}
\0"""

url, count, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
cuda = ctypes.CDLL("libcuda.so.1")


def driver(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise RuntimeError(f"{name} failed: {code}")


def say(*words):
    print(*words, flush=True)


def number(value):
    return ctypes.c_uint64(value)


def launch(table, found):
    values = [number(table), number(found)]
    pointers = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values))
    driver("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)


def allocate(size):
    address = ctypes.c_uint64()
    driver("cuMemAlloc_v2", ctypes.byref(address), size)
    return address.value


def show(found):
    seen = ctypes.c_uint32()
    driver("cuMemcpyDtoH_v2", ctypes.byref(seen), number(found), 4)
    say("found", seen.value)


data = rekindle.Data(url, dtype="int32", shape=count)
array = data.load()
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
driver("cuModuleLoadData", ctypes.byref(module), PTX)
driver("cuModuleGetFunction", ctypes.byref(kernel), module, b"follow")
table, found = allocate(8), allocate(4)
driver("cuMemsetD32_v2", number(found), 7, 1)
last = array.address + 4 * (count - 1)
say("asked")
if way == "pinned":
    # The address comes to the GPU by a copy that nobody waits for.
    host = ctypes.c_void_p()
    driver("cuMemHostAlloc", ctypes.byref(host), 8, 0)
    ctypes.cast(host, ctypes.POINTER(ctypes.c_uint64))[0] = last
    driver("cuMemcpyHtoDAsync_v2", number(table), host, 8, None)
    launch(table, found)
    say("launched")
elif way == "mapped":
    # The kernel reads it from the host's memory.
    host = ctypes.c_void_p()
    driver("cuMemHostAlloc", ctypes.byref(host), 8, 0)
    ctypes.cast(host, ctypes.POINTER(ctypes.c_uint64))[0] = last
    launch(host.value, found)
    say("launched")
elif way == "uploaded":
    driver("cuMemcpyHtoD_v2", number(table), ctypes.byref(number(last)), 8)
    launch(table, found)
    say("launched")
elif way == "refused":
    try:
        array.wait()
    except rekindle.DataError as error:
        say(type(error).__name__)
    # Whatever names it is refused, and the rest of the program goes on.
    driver("cuMemcpyDtoDAsync_v2", number(found), number(array.address), 4, None)
    say("copied", cuda.cuCtxSynchronize())
    show(found)
    del array
show(found)
while True:
    time.sleep(0.05)
    say("on")
