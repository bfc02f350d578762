/* Contexts of a device share it; the last one's end frees what was made there; handles die with it. */
#include "cuda_min.h"

static size_t shared_for(int block) {
    return (size_t)block * 4;
}

int main(int argc, char **argv) {
    (void)argc;
    CUcontext primary = open_device(), own, current;
    CUdeviceptr device, other;
    CUstream stream;
    CHECK(cuCtxCreate_v2(&own, 0, 0));
    CHECK(cuCtxGetCurrent(&current));
    EXPECT(current == own && own != primary);
    CHECK(cuMemAlloc_v2(&other, 1000));
    CHECK(cuCtxDestroy_v2(own));
    CHECK(cuCtxGetCurrent(&current));
    EXPECT(current == primary);
    EXPECT_CODE(cuCtxSetCurrent(own), INVALID_CONTEXT);
    EXPECT_CODE(cuMemFree_v2(other), INVALID_VALUE);

    CHECK(cuMemAlloc_v2(&device, 1000));
    CHECK(cuStreamCreate(&stream, 0));
    int kind = 0, grid, block;
    CHECK(cuPointerGetAttribute(&kind, 2, device + 999));
    EXPECT(kind == 2);
    EXPECT_CODE(cuPointerGetAttribute(&kind, 2, device + 1000), INVALID_VALUE);
    CHECK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function("scale"), shared_for, 0, 0));
    EXPECT(grid > 0 && block >= 32 && block % 32 == 0);
    pause_here(argv);

    CHECK(cuDevicePrimaryCtxReset_v2(0));
    EXPECT_CODE(cuMemAlloc_v2(&device, 1000), CONTEXT_DESTROYED);
    EXPECT_CODE(cuStreamSynchronize(stream), INVALID_HANDLE);
    CHECK(cuDevicePrimaryCtxRetain(&current, 0));
    EXPECT(current == primary);
    CHECK(cuMemAlloc_v2(&device, 1000));
    CHECK(cuMemsetD8_v2(device, 1, 1000));
    CHECK(cuCtxSynchronize());
    return ok();
}
