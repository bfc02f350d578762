"""Textures and surfaces on random arrays, against NumPy: what lies where coordinates lead, and between elements."""

import numpy as np
from kernels import Kernels, call, gpu, main

kernels = Kernels("texture")
N = 2000
OUTSIDE = -5.0


def launch(name, *arguments):
    kernels.launch(name, (N + 127) // 128, 128, *arguments, np.int32(N))


def inside(index, size, mode, normalized):
    """Where an index leads along one side; -1 for the border."""
    if mode == gpu.BORDER:
        return np.where((index >= 0) & (index < size), index, -1)
    if mode == gpu.WRAP and normalized:
        return index % size
    if mode == gpu.MIRROR and normalized:
        index = index % (2 * size)
        return np.where(index < size, index, 2 * size - 1 - index)
    return np.clip(index, 0, size - 1)


def element(data, indices, mode, normalized):
    """The elements at whole numbers, the first for the last axis."""
    places = [inside(index, size, mode, normalized) for index, size in zip(indices, data.shape[::-1], strict=True)]
    found = data[tuple(np.maximum(place, 0) for place in places[::-1])]
    return np.where(np.any([place < 0 for place in places], axis=0), OUTSIDE, found)


def sample(data, at, mode, linear, normalized):
    """What a texture reads at coordinates in elements. Weights have eight bits."""
    if not linear:
        return element(data, [np.floor(x).astype(np.int64) for x in at], mode, normalized)
    total = np.zeros(len(at[0]))
    for corner in range(1 << len(at)):
        weight, indices = np.ones(len(at[0])), []
        for axis, x in enumerate(at):
            first = np.floor(x - 0.5)
            part = np.round((x - 0.5 - first) * 256) / 256
            far = corner >> axis & 1
            weight *= part if far else 1 - part
            indices.append(first.astype(np.int64) + far)
        total += weight * element(data, indices, mode, normalized)
    return total


def coordinates(random, size, normalized):
    """As kernels take them, and in elements: eighths, so that nothing is rounded."""
    steps = random.integers(-2 * 8 * size, 3 * 8 * size, N)
    elements = steps / 8
    return (elements / size if normalized else elements).astype(np.float32), elements


def texture_of(array, mode, linear, normalized, **more):
    flags = gpu.NORMALIZED if normalized else 0
    return gpu.make_texture(gpu.array_resource(array), mode, linear, flags, (OUTSIDE,) * 4, **more)


def filters(random):
    for shape, name in (((64,), "line"), ((32, 16), "plane"), ((16, 8, 4), "solid")):
        data = random.integers(-100, 100, shape[::-1]).astype(np.float32)
        array = gpu.make_array(shape)
        gpu.fill_array(array, data)
        for mode in (gpu.WRAP, gpu.CLAMP, gpu.MIRROR, gpu.BORDER):
            for linear in (False, True):
                for normalized in (False, True):
                    given, at = zip(*(coordinates(random, size, normalized) for size in shape), strict=True)
                    texture, out = texture_of(array, mode, linear, normalized), np.empty(N, np.float32)
                    launch(name, texture, *given, out)
                    expected = sample(data, at, mode, linear, normalized)
                    assert np.allclose(out, expected, atol=1e-3), (name, mode, linear, normalized)
                    call("cuTexObjectDestroy", int(texture))
        call("cuArrayDestroy", array)


def layers_and_faces(random):
    data = random.integers(0, 100, (6, 8, 8)).astype(np.float32)
    layered, cube = gpu.make_array((8, 8, 6), flags=gpu.LAYERED), gpu.make_array((8, 8, 6), flags=gpu.CUBEMAP)
    gpu.fill_array(layered, data)
    gpu.fill_array(cube, data)
    out = np.empty(N, np.float32)
    (x, at_x), (y, at_y) = (coordinates(random, 8, False) for _ in range(2))
    layer = random.integers(0, 6, N).astype(np.int32)
    launch("stack", texture_of(layered, gpu.CLAMP, True, False), x, y, layer, out)
    expected = [sample(data[k], (at_x, at_y), gpu.CLAMP, True, False) for k in range(6)]
    assert np.allclose(out, np.choose(layer, expected), atol=1e-3)
    # Directions that meet faces in the middle of elements.
    face = random.integers(0, 6, N)
    column, row = random.integers(0, 8, (2, N))
    s, t, one = (column + 0.5) / 4 - 1, (row + 0.5) / 4 - 1, np.ones(N)
    x = np.choose(face, [one, -one, s, s, s, -s])
    y = np.choose(face, [-t, -t, one, -one, -t, -t])
    z = np.choose(face, [-s, s, t, -t, one, -one])
    launch("directions", texture_of(cube, gpu.CLAMP, False, True), *(3 * v.astype(np.float32) for v in (x, y, z)), out)
    assert np.array_equal(out, data[face, row, column])


def levels(random):
    array = gpu.make_array((16, 16), levels=5)
    values = random.integers(0, 100, 5).astype(np.float32)
    for number, value in enumerate(values):
        gpu.fill_array(call("cuMipmappedArrayGetLevel", array, number), np.full((16 >> number, 16 >> number), value, np.float32))
    level = (random.integers(-2 * 8, 7 * 8, N) / 8).astype(np.float32)
    out, sloped = np.empty((2, N), np.float32)
    for mipmapped in (0, 1):
        texture = texture_of(array, gpu.CLAMP, True, True, mipmapFilterMode=gpu.driver.CUfilter_mode(mipmapped), maxMipmapLevelClamp=100.0)
        # Halfway between two levels either may be nearest.
        level[level % 1 == 0.5] += 0.125
        launch("detail", texture, level, out, sloped)
        at = np.clip(level, 0, 4)
        expected = np.interp(at, np.arange(5), values) if mipmapped else values[np.floor(at + 0.5).astype(int)]
        assert np.allclose(out, expected, atol=1e-2)
        assert np.allclose(sloped, expected, atol=1 if mipmapped else 1e-2)


def gathers(random):
    data = random.integers(0, 100, (16, 32 * 2)).astype(np.float32)
    array = gpu.make_array((32, 16), channels=2, flags=gpu.GATHER)
    gpu.fill_array(array, data)
    x, y = random.integers(1, 31, N), random.integers(1, 15, N)
    out = np.empty((N, 4), np.float32)
    launch("gathered", texture_of(array, gpu.CLAMP, False, False), x.astype(np.float32), y.astype(np.float32), out)
    second = data[:, 1::2]
    expected = [second[y, x - 1], second[y, x], second[y - 1, x], second[y - 1, x - 1]]
    assert np.array_equal(out, np.stack(expected, axis=1))


def formats(random):
    def line(kind, channels):
        data = random.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, N * channels).astype(kind)
        array = gpu.make_array((N,), kind, channels)
        gpu.fill_array(array, data)
        return array, data

    for kind, name, channels in ((np.uint8, "bytes", 4), (np.int16, "shorts", 2)):
        array, data = line(kind, channels)
        out = np.empty(N * channels, kind)
        launch(name, gpu.make_texture(gpu.array_resource(array), flags=gpu.AS_INTEGER), out)
        assert np.array_equal(out, data)
    for kind, most in ((np.uint8, 255), (np.int8, 127), (np.uint16, 65535), (np.int16, 32767)):
        array, data = line(kind, 2)
        out = np.empty(2 * N, np.float32)
        launch("fractions", gpu.make_texture(gpu.array_resource(array)), out)
        assert np.allclose(out, np.maximum(data / most, -1), atol=1e-6)
    halves = random.standard_normal(4 * N).astype(np.float16)
    array = gpu.make_array((N,), np.float16, 4)
    gpu.fill_array(array, halves)
    out = np.empty(4 * N, np.float32)
    launch("wide", gpu.make_texture(gpu.array_resource(array)), out)
    assert np.array_equal(out, halves.astype(np.float32))


def memory(random):
    data = random.integers(-(2**31), 2**31, 4 * N).astype(np.int32)
    address = call("cuMemAlloc", data.nbytes)
    call("cuMemcpyHtoD", address, data.ctypes.data, data.nbytes)
    resource = gpu.driver.CUDA_RESOURCE_DESC()
    resource.resType = gpu.driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
    linear = resource.res.linear
    linear.devPtr, linear.format, linear.numChannels, linear.sizeInBytes = int(address), gpu.driver.CUarray_format(10), 4, data.nbytes
    at = random.integers(-100, N + 100, N).astype(np.int32)
    out = np.empty((N, 4), np.int32)
    launch("fetched", gpu.make_texture(resource), at, out)
    there = (at >= 0) & (at < N)
    assert np.array_equal(out, np.where(there[:, None], data.reshape(N, 4)[np.clip(at, 0, N - 1)], 0))


def surfaces(random):
    width, height = 40, 24
    data = random.integers(-(2**15), 2**15, (height, 4 * width)).astype(np.int16)
    source, target = gpu.make_array((width, height), np.int16, 4, gpu.SURFACE), gpu.make_array((height, width), np.int16, 4, gpu.SURFACE)
    gpu.fill_array(source, data)
    kernels.launch("turned", (5, 3), (8, 8), gpu.make_surface(source), gpu.make_surface(target), np.int32(width), np.int32(height))
    expected = data.reshape(height, width, 4).transpose(1, 0, 2).reshape(width, 4 * height)
    assert np.array_equal(gpu.read_array(target, expected), expected)
    data = random.integers(-(2**31), 2**31, (height, width)).astype(np.int32)
    array = gpu.make_array((width, height), np.int32, flags=gpu.SURFACE)
    gpu.fill_array(array, data)
    x, y = (random.integers(-size, 2 * size, N).astype(np.int32) for size in (width, height))
    zero, clamp = np.empty((2, N), np.int32)
    launch("bounded", gpu.make_surface(array), x, y, zero, clamp)
    clipped = data[np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)]
    assert np.array_equal(clamp, clipped)
    assert np.array_equal(zero, np.where((x >= 0) & (x < width) & (y >= 0) & (y < height), clipped, 0))


def trap(_):
    """Last: the context is lost."""
    array = gpu.make_array((8, 8), np.int32, flags=gpu.SURFACE)
    function = call("cuModuleGetFunction", kernels.module, b"outside")
    slot = np.array([gpu.make_surface(array)])
    pointers = np.array([slot.ctypes.data], np.uint64)
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, pointers.ctypes.data, 0)
    assert gpu.driver.cuCtxSynchronize()[0] != gpu.driver.CUresult.CUDA_SUCCESS


main(filters, layers_and_faces, levels, gathers, formats, memory, surfaces, trap)
