"""As much of the driver's interface as the benchmark's functions need: without any library, in a sandbox and out of it."""

import ctypes
import functools
import math
import threading

import numpy

NON_BLOCKING = 1

# `nothing`; `spin`: multiplies and adds so many times; `total`: the sum of 32-bit words, a thread for every so many of them.
CODE = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry nothing() { ret; }

.visible .entry spin(.param .u64 out, .param .u32 count)
{
    .reg .pred %more; .reg .f32 %x; .reg .u32 %left; .reg .u64 %to;
    ld.param.u64 %to, [out];
    ld.param.u32 %left, [count];
    mov.f32 %x, 0f3F000000;
again:
    fma.rn.f32 %x, %x, %x, %x;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %more, %left, 0;
    @%more bra again;
    st.global.f32 [%to], %x;
    ret;
}

.visible .entry total(.param .u64 out, .param .u64 words, .param .u32 count)
{
    .reg .pred %end; .reg .u32 %at, %step, %size, %x, %sum, %a, %b; .reg .u64 %from, %to, %place;
    ld.param.u64 %to, [out];
    ld.param.u64 %from, [words];
    ld.param.u32 %size, [count];
    mov.u32 %a, %ctaid.x;
    mov.u32 %b, %ntid.x;
    mov.u32 %at, %tid.x;
    mad.lo.u32 %at, %a, %b, %at;
    mov.u32 %a, %nctaid.x;
    mul.lo.u32 %step, %a, %b;
    mov.u32 %sum, 0;
again:
    setp.ge.u32 %end, %at, %size;
    @%end bra done;
    mul.wide.u32 %place, %at, 4;
    add.u64 %place, %from, %place;
    ld.global.u32 %x, [%place];
    add.u32 %sum, %sum, %x;
    add.u32 %at, %at, %step;
    bra again;
done:
    red.global.add.u32 [%to], %sum;
    ret;
}
"""


@functools.cache
def library():
    return ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(library(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name} failed with the CUDA error {code}")


def enter():
    """This thread works in the first device's primary context."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuCtxGetCurrent", ctypes.byref(context))
    if not context:
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)


class Array:
    """Words of 32 bits on the GPU."""

    def __init__(self, count):
        self.shape, self.dtype, self.nbytes = (count,), numpy.dtype("uint32"), 4 * count
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.nbytes))
        self.address = address.value

    def __del__(self):
        library().cuMemFree_v2(ctypes.c_uint64(getattr(self, "address", 0)))

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": "<u4", "data": (self.address, False), "version": 3, "strides": None, "stream": None}

    def copy_to_host(self, to=None):
        to = numpy.empty(self.shape, self.dtype) if to is None else to
        call("cuMemcpyDtoH_v2", ctypes.c_void_p(to.ctypes.data), ctypes.c_uint64(self.address), ctypes.c_size_t(self.nbytes))
        return to


class Stream:
    """A stream of its own, with kernels."""

    def __init__(self):
        enter()
        self.handle = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(self.handle), NON_BLOCKING)
        self.kernels = kernels()
        self.word = Array(1)
        self.home = threading.get_ident()

    def wait(self):
        call("cuStreamSynchronize", self.handle)

    def launch(self, name, blocks, threads, *arguments):
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(*(ctypes.addressof(one) for one in arguments))
        call("cuLaunchKernel", self.kernels[name], blocks, 1, 1, threads, 1, 1, 0, self.handle, pointers, None)

    def fill(self, array, host):
        call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(array.address), ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(array.nbytes), self.handle)

    def spin(self, count):
        self.launch("spin", 1, 1, ctypes.c_uint64(self.word.address), ctypes.c_uint32(count))

    def total(self, address, count):
        """The sum of words, modulo 2**32, once the stream's work is done."""
        out = numpy.zeros(1, "uint32")
        self.fill(self.word, out)
        self.wait()
        blocks = max(1, min(512, math.ceil(count / 4096)))
        self.launch("total", blocks, 128, ctypes.c_uint64(self.word.address), ctypes.c_uint64(address), ctypes.c_uint32(count))
        self.wait()
        return int(self.word.copy_to_host()[0])


@functools.cache
def kernels():
    """Loaded once in a process."""
    module, found = ctypes.c_void_p(), {}
    call("cuModuleLoadData", ctypes.byref(module), CODE)
    for name in ("nothing", "spin", "total"):
        found[name] = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(found[name]), module, name.encode())
    return found


if __name__ == "__main__":
    enter()
