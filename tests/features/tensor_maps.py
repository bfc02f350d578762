"""Tiles of tensors that the tensor memory accelerator copies: maps made before the pause, and changed on the GPU after it."""

import ctypes

import numpy as np
from cuda.bindings import driver
from gpu import Module, call, download, main, open_device, pack, upload

ROWS, COLUMNS, HIGH, WIDE = 20, 40, 8, 16
KERNELS = """
struct alignas(64) Map { unsigned char bytes[128]; };

// One thread loads a tile, all add to it, one stores it where the other map says.
extern "C" __global__ void move(const __grid_constant__ Map from, const __grid_constant__ Map to, int x, int y, float more) {
    __shared__ alignas(128) float tile[128];
    __shared__ alignas(8) unsigned long long done;
    unsigned shared = (unsigned)__cvta_generic_to_shared(tile), barrier = (unsigned)__cvta_generic_to_shared(&done);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" :: "r"(barrier) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     :: "r"(shared), "l"(&from), "r"(x), "r"(y), "r"(barrier) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }" :: "r"(barrier) : "memory");
    tile[threadIdx.x] += more;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" :: "l"(&to), "r"(x), "r"(y), "r"(shared) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// What a tile with swizzle has in shared memory, word by word.
extern "C" __global__ void look(const __grid_constant__ Map from, float *words) {
    __shared__ alignas(1024) float tile[256];
    __shared__ alignas(8) unsigned long long done;
    unsigned shared = (unsigned)__cvta_generic_to_shared(tile), barrier = (unsigned)__cvta_generic_to_shared(&done);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(barrier) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     :: "r"(shared), "l"(&from), "r"(0), "r"(0), "r"(barrier) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }" :: "r"(barrier) : "memory");
    words[threadIdx.x] = tile[threadIdx.x];
}
"""


def encode(address, wide, high, swizzle=0, columns=COLUMNS):
    tensor = driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    word = driver.cuuint32_t
    sizes, strides = [driver.cuuint64_t(columns), driver.cuuint64_t(ROWS)], [driver.cuuint64_t(4 * columns)]
    interleave, promotion = driver.CUtensorMapInterleave(0), driver.CUtensorMapL2promotion(0)
    fill, pattern = driver.CUtensorMapFloatOOBfill(0), driver.CUtensorMapSwizzle(swizzle)
    return call(
        "cuTensorMapEncodeTiled",
        tensor,
        2,
        int(address),
        sizes,
        strides,
        [word(wide), word(high)],
        [word(1), word(1)],
        interleave,
        pattern,
        promotion,
        fill,
    )


def setup():
    open_device()
    module = Module(KERNELS)
    numbers = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    source, target = upload(numbers), upload(np.zeros_like(numbers))
    maps = encode(source, WIDE, HIGH), encode(target, WIDE, HIGH)

    def launch(name, threads, maps, *arguments):
        slots, pointers = pack(arguments)
        pointers = np.array([map_.getPtr() for map_ in maps] + [slot.ctypes.data for slot in slots], np.uint64)
        call("cuLaunchKernel", module.function(name), 1, 1, 1, threads, 1, 1, 0, 0, pointers.ctypes.data, 0)
        call("cuCtxSynchronize")

    def move(x, y, more, expected):
        launch("move", 128, maps, x, y, more)
        inside = np.s_[max(y, 0) : y + HIGH, max(x, 0) : x + WIDE]
        expected[inside] = numbers[inside] + np.float32(more)
        assert (download(target, numbers.size).reshape(numbers.shape) == expected).all()

    expected = np.zeros_like(numbers)
    move(8, 4, 1.0, expected)

    def verify():
        # The map is in the program's memory, and the tensors are where they were.
        move(24, 0, 2.0, expected)
        # Over two borders.
        move(32, 16, 4.0, expected)
        words = upload(np.zeros(256, np.float32))
        launch("look", 256, [encode(source, 32, 8, swizzle=3)], int(words))
        at = np.arange(256)
        row, piece, rest = at // 32, at % 32 // 4, at % 4
        tile = numbers[:8, :32].reshape(-1)
        assert (download(words, 256) == tile[row * 32 + (piece ^ row) * 4 + rest]).all()
        # A map for memory elsewhere.
        moved = upload(numbers + 1000)
        other = encode(source, WIDE, HIGH)
        cuda = ctypes.CDLL("libcuda.so.1")
        assert cuda.cuTensorMapReplaceAddress(ctypes.c_void_p(other.getPtr()), ctypes.c_uint64(int(moved))) == 0
        launch("move", 128, (other, maps[1]), 0, 8, 0.0)
        assert (download(target, numbers.size).reshape(numbers.shape)[8:16, :WIDE] == numbers[8:16, :WIDE] + 1000).all()
        try:
            encode(int(source) + 4, WIDE, HIGH)
        except RuntimeError as error:
            assert "INVALID_VALUE" in str(error)
        else:
            raise AssertionError("a tensor that is not aligned was taken")

    return verify


main(setup)
