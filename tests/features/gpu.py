"""What the feature programs share: checked driver calls, kernels from CUDA C, and the pause in the middle.

A program calls `main(setup)`. `setup()` brings the GPU into some state and returns `verify()`. Between the two the
program prints `ready` and waits for the file named by its first argument; that is where a test checkpoints it.
"""

import ctypes
import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np
from cuda.bindings import driver

# What was compiled once: the same few sources are asked for by program after program.
COMPILED = Path(__file__).resolve().parents[2] / ".build/ptx"


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
    what = hashlib.sha256(repr((driver.CUDA_VERSION, source, options)).encode()).hexdigest()
    kept = COMPILED / what
    if kept.exists():
        return kept.read_bytes()
    ptx = compiled(source, *options)
    COMPILED.mkdir(parents=True, exist_ok=True)
    draft = COMPILED / f"{what}.{os.urandom(8).hex()}"
    draft.write_bytes(ptx)
    draft.rename(kept)
    return ptx


def compiled(source: str, *options) -> bytes:
    # It is large, and most programs find what they need in `COMPILED`.
    from cuda.bindings import nvrtc

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


def conditional_module(source: str):
    """A module whose kernels set conditions of graphs.

    What sets them comes from the device's own library on a real GPU; the emulated one knows it by its name.
    """
    ptx = compile_ptx(source, b"--relocatable-device-code=true")
    code, loaded = driver.cuModuleLoadData(ptx)
    if code.value == 0:
        return loaded
    import nvidia

    libraries = [found for folder in nvidia.__path__ for found in Path(folder).glob("**/libcudadevrt.a")]
    link = call("cuLinkCreate", 0, [], [])
    call("cuLinkAddData", link, driver.CUjitInputType.CU_JIT_INPUT_PTX, ptx, len(ptx), b"conditional", 0, [], [])
    call("cuLinkAddFile", link, driver.CUjitInputType.CU_JIT_INPUT_LIBRARY, str(libraries[0]).encode(), 0, [], [])
    image, size = call("cuLinkComplete", link)
    return call("cuModuleLoadData", ctypes.string_at(int(image), size))


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
    """Arguments as the driver wants them: floats as 32 bits, addresses (`np.uint64`, or anything over 2**31) as 64, other integers as 32."""

    def slot(a):
        if isinstance(a, float):
            return np.array([a], np.float32)
        return np.array([int(a)], np.uint64 if isinstance(a, np.uint64) or int(a) > 2**31 else np.int32)

    slots = [slot(a) for a in arguments]
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
    bytes_ = np.dtype(kind).itemsize * count
    return np.frombuffer((ctypes.c_uint8 * bytes_).from_address(int(pointer)), kind)


FORMATS = {"uint8": 1, "uint16": 2, "uint32": 3, "int8": 8, "int16": 9, "int32": 10, "float16": 16, "float32": 32}
LAYERED, SURFACE, CUBEMAP, GATHER = 1, 2, 4, 8


def make_array(shape, kind=np.float32, channels=1, flags=0, levels=None):
    """A CUDA array of `shape` (width, height, depth), with `levels` mipmaps."""
    given = driver.CUDA_ARRAY3D_DESCRIPTOR()
    given.Width, given.Height, given.Depth = (*shape, 0, 0)[:3]
    given.Format = driver.CUarray_format(FORMATS[np.dtype(kind).name])
    given.NumChannels, given.Flags = channels, flags
    if levels is None:
        return call("cuArray3DCreate", given)
    return call("cuMipmappedArrayCreate", given, levels)


def _side(copy, name, end, row, rows):
    kinds = driver.CUmemorytype
    if isinstance(end, np.ndarray):
        setattr(copy, f"{name}MemoryType", kinds.CU_MEMORYTYPE_HOST)
        setattr(copy, f"{name}Host", end.ctypes.data)
    elif isinstance(end, driver.CUarray):
        setattr(copy, f"{name}MemoryType", kinds.CU_MEMORYTYPE_ARRAY)
        setattr(copy, f"{name}Array", end)
        return
    else:
        setattr(copy, f"{name}MemoryType", kinds.CU_MEMORYTYPE_UNIFIED)
        setattr(copy, f"{name}Device", int(end))
    setattr(copy, f"{name}Pitch", row)
    setattr(copy, f"{name}Height", rows)


def box(to, source, size, at_to=(0, 0, 0), at_source=(0, 0, 0), pitch=None):
    """A copy of `size` (bytes, rows, slices) between arrays of NumPy, CUDA arrays and addresses, whose rows have `pitch` bytes."""
    copy = driver.CUDA_MEMCPY3D()
    row, rows = pitch or size[0], size[1]
    _side(copy, "dst", to, row, rows)
    _side(copy, "src", source, row, rows)
    copy.dstXInBytes, copy.dstY, copy.dstZ = at_to
    copy.srcXInBytes, copy.srcY, copy.srcZ = at_source
    copy.WidthInBytes, copy.Height, copy.Depth = size
    return copy


def copy_box(to, source, size, at_to=(0, 0, 0), at_source=(0, 0, 0), pitch=None, stream=None):
    """Does what [`box`] describes."""
    copy = box(to, source, size, at_to, at_source, pitch)
    if stream is None:
        call("cuMemcpy3D", copy)
    else:
        call("cuMemcpy3DAsync", copy, stream)


def fill_array(array, data):
    """Puts `data`, whose last axis is the width (or, behind it, the channels given by `data.dtype`'s shape), into an array."""
    data = np.ascontiguousarray(data)
    slices, rows, row = (1, 1, *data.shape)[-3:]
    copy_box(array, data, (row * data.itemsize, rows, slices))


def read_array(array, like):
    """What an array holds, in the shape of `like`."""
    data = np.zeros_like(like)
    slices, rows, row = (1, 1, *data.shape)[-3:]
    copy_box(data, array, (row * data.itemsize, rows, slices))
    return data


def array_resource(array):
    resource = driver.CUDA_RESOURCE_DESC()
    if isinstance(array, driver.CUmipmappedArray):
        resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
        resource.res.mipmap.hMipmappedArray = array
    else:
        resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
        resource.res.array.hArray = array
    return resource


WRAP, CLAMP, MIRROR, BORDER = range(4)
AS_INTEGER, NORMALIZED = 1, 2


def make_texture(resource, mode=CLAMP, linear=False, flags=0, border=(0.0, 0.0, 0.0, 0.0), **more):
    """The number of a texture object, as kernels take it."""
    given = driver.CUDA_TEXTURE_DESC()
    given.addressMode = [driver.CUaddress_mode(mode)] * 3
    given.filterMode = driver.CUfilter_mode(int(linear))
    given.flags = flags
    given.borderColor = list(border)
    for name, value in more.items():
        setattr(given, name, value)
    return np.uint64(int(call("cuTexObjectCreate", resource, given, None)))


def make_surface(array):
    return np.uint64(int(call("cuSurfObjectCreate", array_resource(array))))


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
