"""Texture objects are known by the same numbers: in arguments, in GPU memory, in captured launches; and read the same."""

import numpy as np
from cuda.bindings import driver
from gpu import (
    BORDER,
    LAYERED,
    MIRROR,
    NORMALIZED,
    WRAP,
    Module,
    array_resource,
    call,
    download,
    fill_array,
    main,
    make_array,
    make_texture,
    open_device,
    upload,
)

SOURCE = """
extern "C" __global__ void plane(cudaTextureObject_t t, float *out, int width, int height, float scale, float shift) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width * height) out[i] = tex2D<float>(t, (i % width + shift) * scale, (i / width + shift) * scale);
}
extern "C" __global__ void fetch(cudaTextureObject_t t, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1Dfetch<int>(t, i);
}
extern "C" __global__ void layers(cudaTextureObject_t t, float *out, int width) {
    out[threadIdx.x] = tex1DLayered<float>(t, threadIdx.x % width + 0.5f, threadIdx.x / width);
}
extern "C" __global__ void levels(cudaTextureObject_t t, float *out) {
    out[threadIdx.x] = tex2DLod<float>(t, 0.5f, 0.5f, (float)threadIdx.x);
}
extern "C" __global__ void listed(const unsigned long long *textures, float *out) {
    out[threadIdx.x] = tex2D<float>(textures[threadIdx.x], 0.5f, 0.5f);
}"""

WIDTH, HEIGHT = 32, 16


def pitched(address, kind, width, height, pitch):
    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_PITCH2D
    memory = resource.res.pitch2D
    memory.devPtr, memory.format, memory.numChannels = int(address), driver.CUarray_format(kind), 1
    memory.width, memory.height, memory.pitchInBytes = width, height, pitch
    return resource


def linear(address, kind, size):
    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
    memory = resource.res.linear
    memory.devPtr, memory.format, memory.numChannels, memory.sizeInBytes = int(address), driver.CUarray_format(kind), 1, size
    return resource


def filtered(data, shift):
    """Between elements, as a linear filter with clamped coordinates has it."""
    y, x = np.indices(data.shape)
    x, y = x + shift - 0.5, y + shift - 0.5
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    a, b = x - left, y - top

    def at(row, column):
        return data[np.clip(row, 0, HEIGHT - 1), np.clip(column, 0, WIDTH - 1)]

    upper = (1 - a) * at(top, left) + a * at(top, left + 1)
    lower = (1 - a) * at(top + 1, left) + a * at(top + 1, left + 1)
    return (1 - b) * upper + b * lower


def setup():
    open_device()
    module = Module(SOURCE)
    rng = np.random.default_rng(7)
    data = rng.integers(0, 256, (HEIGHT, WIDTH)).astype(np.float32)
    out = call("cuMemAlloc", 4 * WIDTH * HEIGHT)
    array = make_array((WIDTH, HEIGHT))
    fill_array(array, data)
    bytes_ = make_array((WIDTH, HEIGHT), np.uint8)
    fill_array(bytes_, data.astype(np.uint8))
    layered = make_array((8, 0, 4), flags=LAYERED)
    fill_array(layered, data.ravel()[:32].reshape(4, 1, 8))
    mipmapped = make_array((8, 8), levels=4)
    for number in range(4):
        fill_array(call("cuMipmappedArrayGetLevel", mipmapped, number), np.full((8 >> number, 8 >> number), 10.0 * number, np.float32))
    whole = rng.integers(-(2**31), 2**31, 1000).astype(np.int32)
    memory = upload(whole)
    rows = upload(data)

    point = make_texture(array_resource(array))
    passing = [make_texture(array_resource(array)) for _ in range(6)]
    smooth = make_texture(array_resource(array), linear=True)
    wrapped = make_texture(array_resource(array), WRAP, flags=NORMALIZED)
    mirrored = make_texture(array_resource(array), MIRROR, flags=NORMALIZED)
    bordered = make_texture(array_resource(array), BORDER, border=(9.0, 0.0, 0.0, 0.0))
    fraction = make_texture(array_resource(bytes_))
    by_layer = make_texture(array_resource(layered))
    by_level = make_texture(array_resource(mipmapped), flags=NORMALIZED, maxMipmapLevelClamp=10.0)
    flat = make_texture(linear(memory, 10, whole.nbytes))
    plane = make_texture(pitched(rows, 32, WIDTH, HEIGHT, 4 * WIDTH), linear=True)
    # Their numbers are free: those that stay must not move up.
    for texture in passing[:2] + passing[3:]:
        call("cuTexObjectDestroy", int(texture))
    known = [point, passing[2], wrapped, bordered]
    listed = upload(np.array(known, np.uint64))

    # A captured launch has the number in its arguments.
    stream = call("cuStreamCreate", 1)
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    module.plane(WIDTH * HEIGHT // 64, 64, point, out, WIDTH, HEIGHT, 1.0, 0.5, stream=stream)
    instance = call("cuGraphInstantiate", call("cuStreamEndCapture", stream), 0)

    def read(texture, scale=1.0, shift=0.5):
        module.plane(WIDTH * HEIGHT // 64, 64, texture, out, WIDTH, HEIGHT, float(scale), float(shift))
        return download(out, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH)

    def compare():
        assert np.array_equal(read(point), data)
        assert np.array_equal(read(passing[2]), data)
        assert np.allclose(read(smooth, 1.0, 0.75), filtered(data, 0.75), atol=1e-3)
        assert np.allclose(read(plane, 1.0, 1.0), filtered(data, 1.0), atol=1e-3)
        y, x = np.indices(data.shape)
        # Three times the width, beginning before the first element.
        at = [(3 * index + 0.5 - 24) / 32 for index in (x, y)]

        def mirror(index, size):
            index = index % (2 * size)
            return np.where(index < size, index, 2 * size - 1 - index)

        found = read(wrapped, 3 / 32, (0.5 - 24) / 3)
        columns, lines = np.floor(at[0] * WIDTH).astype(int), np.floor(at[1] * HEIGHT).astype(int)
        assert np.array_equal(found, data[lines % HEIGHT, columns % WIDTH])
        found = read(mirrored, 3 / 32, (0.5 - 24) / 3)
        assert np.array_equal(found, data[mirror(lines, HEIGHT), mirror(columns, WIDTH)])
        found = read(bordered, 1.0, 4.5)
        expected = np.full_like(data, 9.0)
        expected[:-4, :-4] = data[4:, 4:]
        assert np.array_equal(found, expected)
        assert np.allclose(read(fraction), data / 255, atol=1e-6)
        module.layers(1, 32, by_layer, out, 8)
        assert np.array_equal(download(out, 32), data.ravel()[:32])
        module.levels(1, 4, by_level, out)
        assert np.array_equal(download(out, 4), [0, 10, 20, 30])
        module.fetch(8, 128, flat, out, 500)
        assert np.array_equal(download(out, 500, np.int32), whole[:500])
        module.listed(1, 4, listed, out)
        assert np.array_equal(download(out, 4), [data[0, 0], data[0, 0], data[HEIGHT // 2, WIDTH // 2], data[0, 0]])

    compare()

    def verify():
        compare()
        call("cuMemsetD8", out, 0, data.nbytes)
        call("cuStreamSynchronize", 0)
        call("cuGraphLaunch", instance, stream)
        call("cuStreamSynchronize", stream)
        assert np.array_equal(download(out, data.size).reshape(data.shape), data)
        given = call("cuTexObjectGetTextureDesc", int(bordered))
        assert int(given.addressMode[0]) == BORDER
        given = call("cuTexObjectGetResourceDesc", int(flat))
        assert given.res.linear.sizeInBytes == whole.nbytes
        # What lies in the array now is read, through the textures of before and new ones.
        fill_array(array, data[::-1])
        fresh = make_texture(array_resource(array))
        assert np.array_equal(read(fresh), data[::-1]) and np.array_equal(read(point), data[::-1])
        for texture in (point, passing[2], smooth, wrapped, mirrored, bordered, fraction, by_layer, by_level, flat, plane, fresh):
            call("cuTexObjectDestroy", int(texture))
        call("cuArrayDestroy", array)

    return verify


main(setup)
