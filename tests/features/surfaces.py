"""Surface objects: kernels go on writing arrays through the numbers that they had."""

import numpy as np
from gpu import (
    LAYERED,
    SURFACE,
    Module,
    array_resource,
    call,
    download,
    fill_array,
    main,
    make_array,
    make_surface,
    make_texture,
    open_device,
    read_array,
)

SOURCE = """
extern "C" __global__ void add(cudaSurfaceObject_t s, int width, int height, float x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width * height) surf2Dwrite(surf2Dread<float>(s, i % width * 4, i / width) + x, s, i % width * 4, i / width);
}
extern "C" __global__ void cube(cudaSurfaceObject_t s, int side) {
    short2 value = make_short2(threadIdx.x, -(int)blockIdx.x);
    surf3Dwrite(value, s, threadIdx.x % side * 4, threadIdx.x / side, blockIdx.x);
}
extern "C" __global__ void layers(cudaSurfaceObject_t s, int width) {
    unsigned char value = surf2DLayeredread<unsigned char>(s, threadIdx.x, 0, blockIdx.x);
    surf2DLayeredwrite((unsigned char)(value + blockIdx.x + 1), s, threadIdx.x, 0, blockIdx.x);
}
extern "C" __global__ void outside(cudaSurfaceObject_t s, float *out, int width) {
    out[0] = surf2Dread<float>(s, -4, 0, cudaBoundaryModeZero);
    out[1] = surf2Dread<float>(s, 4 * width, 2, cudaBoundaryModeClamp);
    surf2Dwrite(77.0f, s, 4 * width, 0, cudaBoundaryModeZero);
    surf2Dwrite(88.0f, s, -400, -1, cudaBoundaryModeClamp);
}
extern "C" __global__ void look(cudaTextureObject_t t, float *out, int width) {
    out[threadIdx.x] = tex2D<float>(t, threadIdx.x + 0.5f, 0.5f);
}"""

WIDTH, HEIGHT = 48, 20


def setup():
    open_device()
    module = Module(SOURCE)
    data = np.arange(WIDTH * HEIGHT, dtype=np.float32).reshape(HEIGHT, WIDTH)
    array = make_array((WIDTH, HEIGHT), flags=SURFACE)
    fill_array(array, data)
    solid = make_array((8, 4, 3), np.int16, channels=2, flags=SURFACE)
    layered = make_array((16, 2, 3), np.uint8, flags=SURFACE | LAYERED)
    fill_array(layered, np.zeros((3, 2, 16), np.uint8))
    mipmapped = make_array((WIDTH, HEIGHT), flags=SURFACE, levels=2)
    level = call("cuMipmappedArrayGetLevel", mipmapped, 1)
    fill_array(level, data[: HEIGHT // 2, : WIDTH // 2])
    texture = make_texture(array_resource(array))
    plane, box, stack, half = map(make_surface, (array, solid, layered, level))
    out = call("cuMemAlloc", 4 * WIDTH)
    blocks = WIDTH * HEIGHT // 64
    module.add(blocks, 64, plane, WIDTH, HEIGHT, 1.0)
    module.add(blocks, 64, half, WIDTH // 2, HEIGHT // 2, 5.0)
    module.layers(3, 16, stack, 16)

    def verify():
        module.add(blocks, 64, plane, WIDTH, HEIGHT, 2.0)
        assert np.array_equal(read_array(array, data), data + 3)
        module.look(1, WIDTH, texture, out, WIDTH)
        assert np.array_equal(download(out, WIDTH), data[0] + 3)
        module.add(blocks, 64, half, WIDTH // 2, HEIGHT // 2, 5.0)
        small = data[: HEIGHT // 2, : WIDTH // 2]
        assert np.array_equal(read_array(level, small), small + 10)
        module.cube(3, 32, box, 8)
        found = read_array(solid, np.zeros((3, 4, 16), np.int16)).reshape(3, 32, 2)
        assert np.array_equal(found[:, :, 0], [np.arange(32)] * 3)
        assert np.array_equal(found[:, :, 1], [[0] * 32, [-1] * 32, [-2] * 32])
        module.layers(3, 16, stack, 16)
        found = read_array(layered, np.zeros((3, 2, 16), np.uint8))
        assert np.array_equal(found, [[[2 * n + 2] * 16, [0] * 16] for n in range(3)])
        module.outside(1, 1, plane, out, WIDTH)
        assert np.array_equal(download(out, 2), [0, data[2, -1] + 3])
        found = read_array(array, data)
        assert found[0, 0] == 88 and np.array_equal(found.ravel()[1:], data.ravel()[1:] + 3)
        given = call("cuSurfObjectGetResourceDesc", int(plane))
        assert int(given.res.array.hArray) == int(array)
        for surface in (plane, box, stack, half):
            call("cuSurfObjectDestroy", int(surface))
        call("cuTexObjectDestroy", int(texture))
        for each in (array, solid, layered):
            call("cuArrayDestroy", each)
        call("cuMipmappedArrayDestroy", mipmapped)

    return verify


main(setup)
