"""As much of the CUDA driver's interface as small functions need, and NVRTC to compile their kernels."""

import ctypes
import functools
import glob
import os
import sys

import numpy

COMPUTE_MAJOR, COMPUTE_MINOR = 75, 76
# What Rekindle's emulated GPU takes.
EMULATED = "compute_90"


class GpuError(Exception):
    """A call that failed, and CUDA's number of the error."""


@functools.cache
def library():
    opened = ctypes.CDLL("libcuda.so.1")
    opened.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    opened.cuMemFree_v2.argtypes = [ctypes.c_uint64]
    opened.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
    opened.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
    opened.cuMemsetD8_v2.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t]
    return opened


def call(name, *arguments):
    if code := getattr(library(), name)(*arguments):
        raise GpuError(f"{name} failed with the CUDA error {code}")


def open_context():
    """The first device's primary context, as this thread's."""
    number, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(number), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    call("cuCtxSetCurrent", context)


def architecture(gpu):
    """What kernels are compiled for: machine code of the device that is there, or PTX."""
    if gpu.startswith("emulated"):
        return EMULATED
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceGetAttribute", ctypes.byref(major), COMPUTE_MAJOR, device)
    call("cuDeviceGetAttribute", ctypes.byref(minor), COMPUTE_MINOR, device)
    return f"sm_{major.value}{minor.value}"


def total_memory():
    """Of the first device, bytes."""
    number, size = ctypes.c_int(), ctypes.c_size_t()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(number), 0)
    call("cuDeviceTotalMem_v2", ctypes.byref(size), number)
    return size.value


def compiler():
    """NVRTC, of the Python packages or of the machine."""
    places = [found for path in sys.path for found in sorted(glob.glob(f"{path}/nvidia/*/lib/libnvrtc.so.[0-9]*"))]
    places += ["libnvrtc.so.13", "libnvrtc.so.12", *sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so.[0-9]*"))]
    for place in places:
        try:
            # It looks for this one by its name alone.
            for builtins in glob.glob(f"{os.path.dirname(place)}/libnvrtc-builtins.so.*"):
                ctypes.CDLL(builtins)
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise GpuError("there is no NVRTC (libnvrtc.so.13 or .12), which compiles the kernels; install nvidia-cuda-nvrtc or a CUDA toolkit")


def compiled(source, target):
    """PTX for `compute_NN`, machine code for `sm_NN`."""
    nvrtc, program, size = compiler(), ctypes.c_void_p(), ctypes.c_size_t()
    kind = "PTX" if target.startswith("compute") else "CUBIN"

    def check(name, *arguments):
        if code := getattr(nvrtc, name)(*arguments):
            raise GpuError(f"{name} failed with NVRTC's error {code}: {said()}")

    def said():
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(max(1, size.value))
        nvrtc.nvrtcGetProgramLog(program, log)
        return log.value.decode(errors="replace")[:2000]

    check("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={target}".encode(), b"--use_fast_math")
    check("nvrtcCompileProgram", program, len(options), options)
    check(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    check(f"nvrtcGet{kind}", program, code)
    return code.raw


class Module:
    """Kernels of compiled code: `module.launch(name, blocks, threads, *arguments)`, each an `int` (an address), or a ctypes value."""

    def __init__(self, code):
        self.handle = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self.handle), code + b"\0")
        self.kernels = {}

    def launch(self, name, blocks, threads, *arguments):
        if name not in self.kernels:
            kernel = ctypes.c_void_p()
            call("cuModuleGetFunction", ctypes.byref(kernel), self.handle, name.encode())
            self.kernels[name] = kernel
        values = [ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments]
        slots = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        call("cuLaunchKernel", self.kernels[name], blocks, 1, 1, threads, 1, 1, 0, None, slots, None)


def allocate(size):
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), size)
    return address.value


def free(address):
    call("cuMemFree_v2", address)


def zero(address, size):
    call("cuMemsetD8_v2", address, 0, size)


def to_gpu(address, array):
    call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)


def to_host(address, shape, dtype="float32"):
    array = numpy.empty(shape, dtype)
    call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)
    return array
