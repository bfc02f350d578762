"""Launches as before CUDA 4.0: the block's shape and parameters are set one by one, some of them before the pause."""

import ctypes

import numpy as np
from gpu import Module, call, download, main, open_device, upload

KERNEL = """extern "C" __global__ void put(unsigned *words, unsigned n, float scale, unsigned long long base) {
    extern __shared__ unsigned share[];
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    share[threadIdx.x] = n + (unsigned)(scale * at);
    __syncthreads();
    words[at] = share[threadIdx.x] + (unsigned)base + blockIdx.y;
}"""
WORDS = 256


def setup():
    open_device()
    cuda = ctypes.CDLL("libcuda.so.1")
    function = ctypes.c_void_p(int(Module(KERNEL).function("put")))
    words = upload(np.zeros(WORDS, np.uint32))

    def old(name, *arguments):
        assert getattr(cuda, name)(function, *arguments) == 0, name

    def put(offset, value):
        old("cuParamSetv", offset, ctypes.byref(value), ctypes.sizeof(value))

    old("cuFuncSetBlockShape", 64, 1, 1)
    old("cuFuncSetSharedSize", 64 * 4)
    old("cuParamSetSize", 24)
    put(0, ctypes.c_uint64(int(words)))
    old("cuParamSeti", 8, 5)
    assert cuda.cuFuncSetBlockShape(function, 0, 1, 1) == 1
    assert cuda.cuParamSeti(function, 1 << 20, 5) == 1

    def verify():
        old("cuParamSetf", 12, ctypes.c_float(2.0))
        put(16, ctypes.c_uint64(1000))
        old("cuLaunchGrid", WORDS // 64, 1)
        call("cuCtxSynchronize")
        expected = 1005 + 2 * np.arange(WORDS, dtype=np.uint32)
        assert (download(words, WORDS, np.uint32) == expected).all()
        stream = call("cuStreamCreate", 1)
        old("cuParamSeti", 8, 7)
        old("cuLaunchGridAsync", WORDS // 64, 1, ctypes.c_void_p(int(stream)))
        call("cuStreamSynchronize", stream)
        assert (download(words, WORDS, np.uint32) == expected + 2).all()
        old("cuLaunch")
        call("cuCtxSynchronize")

    return verify


main(setup)
