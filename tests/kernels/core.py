"""NVIDIA's cuda-core: a program in C++ templates, compiled, launched on streams of its own, measured with events."""

import ctypes

import numpy as np
from cuda.core import Device, EventOptions, LaunchConfig, Program, ProgramOptions, launch
from kernels import main

SOURCE = """
template <typename T> __global__ void saxpy(const T a, const T *x, const T *y, T *out, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * size_t(blockDim.x); i < n; i += size_t(gridDim.x) * blockDim.x)
        out[i] = a * x[i] + y[i];
}
"""
device = Device()
device.set_current()
names = ("saxpy<float>", "saxpy<double>")
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
code = Program(SOURCE, code_type="c++", options=options).compile("ptx", name_expressions=names)


def host_view(buffer, kind):
    return np.frombuffer((ctypes.c_uint8 * buffer.size).from_address(int(buffer.handle)), kind)


def saxpy(random):
    from cuda.core import LegacyPinnedMemoryResource

    pinned, stream = LegacyPinnedMemoryResource(), device.create_stream()
    for name, kind in zip(names, (np.float32, np.float64), strict=True):
        n = int(random.integers(1, 20_000))
        size = n * np.dtype(kind).itemsize
        host = [pinned.allocate(size, stream=stream) for _ in range(3)]
        gpu = [device.allocate(size, stream=stream) for _ in range(3)]
        x, y, out = (host_view(buffer, kind) for buffer in host)
        x[:], y[:], a = random.random(n), random.random(n), kind(random.random())
        start, end = (device.create_event(EventOptions(timing_enabled=True)) for _ in range(2))
        stream.record(start)
        for there, here in zip(gpu[:2], host[:2], strict=True):
            there.copy_from(here, stream=stream)
        kernel = code.get_kernel(name)
        launch(stream, LaunchConfig(grid=(n + 255) // 256, block=256), kernel, a, *gpu, np.uint64(n))
        gpu[2].copy_to(host[2], stream=stream)
        stream.record(end)
        stream.sync()
        assert np.allclose(out, a * x + y, rtol=1e-6), (name, n)
        assert end - start >= 0
        for buffer in (*host, *gpu):
            buffer.close(stream)
    assert kernel.attributes.max_threads_per_block == 1024


main(saxpy)
