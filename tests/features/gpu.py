"""What the feature programs share: checked driver calls, kernels from CUDA C, and the pause in the middle.

A program calls `main(setup)`. `setup()` brings the GPU into some state and returns `verify()`. Between the two the
program prints `ready` and waits for the file named by its first argument; that is where a test checkpoints it.
"""

import os
import sys
import time

import numpy as np
from cuda.bindings import driver, nvrtc


def check(result):
    """The values of a driver or NVRTC call, or an exception that names its error."""
    code, *values = result
    if code.value:
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


def call(name, *arguments):
    return check(getattr(driver, name)(*arguments))


def open_device(index=0):
    call("cuInit", 0)
    context = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", index))
    call("cuCtxSetCurrent", context)
    return context


def compile_ptx(source: str, *options) -> bytes:
    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"feature.cu", 0, [], []))
    options = [b"--gpu-architecture=compute_90", *options]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if code.value:
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    ptx = b" " * check(nvrtc.nvrtcGetPTXSize(program))
    check(nvrtc.nvrtcGetPTX(program, ptx))
    return ptx


class Module:
    """A loaded module; kernels are its attributes: `module.name(grid, block, *arguments, stream=0, shared=0)`."""

    def __init__(self, source: str):
        self.handle = call("cuModuleLoadData", compile_ptx(source))

    def function(self, name):
        return call("cuModuleGetFunction", self.handle, name.encode())

    def address(self, name):
        return call("cuModuleGetGlobal", self.handle, name.encode())

    def __getattr__(self, name):
        function = self.function(name)

        def launch(grid, block, *arguments, stream=0, shared=0):
            slots, pointers = pack(arguments)
            call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, stream, pointers.ctypes.data, 0)
            return slots

        setattr(self, name, launch)
        return launch


def pack(arguments):
    """Arguments as the driver wants them: floats as 32 bits, addresses (anything over 2**31) as 64, other integers as 32."""
    slots = [np.array([a], np.float32) if isinstance(a, float) else np.array([int(a)], np.uint64 if int(a) > 2**31 else np.int32) for a in arguments]
    return slots, np.array([s.ctypes.data for s in slots], np.uint64)


def upload(array):
    address = call("cuMemAlloc", array.nbytes)
    call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)
    # What came from pageable memory may still be on its way to the GPU; streams that don't wait for the legacy one would overtake it.
    call("cuStreamSynchronize", 0)
    return address


def download(address, count, kind=np.float32):
    array = np.empty(count, kind)
    call("cuMemcpyDtoH", array.ctypes.data, address, array.nbytes)
    return array


def at(pointer, count, kind=np.float32):
    """Host memory that the driver allocated, as an array."""
    import ctypes

    bytes_ = np.dtype(kind).itemsize * count
    return np.frombuffer((ctypes.c_uint8 * bytes_).from_address(int(pointer)), kind)


ADD = """extern "C" __global__ void add(float *a, float x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] += x;
}"""


def adder():
    """Opens the GPU: a module whose `add` adds a number to the first `n` elements of an array, `n`, and two arrays of zeros."""
    open_device()
    n = 1024
    return Module(ADD), n, upload(np.zeros(n, np.float32)), upload(np.zeros(n, np.float32))


def main(setup):
    verify = setup()
    print("ready", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.005)
    verify()
    print("ok", flush=True)
