/* The worker dies: every call says so, and none hangs. */
#include <signal.h>

#include "cuda_min.h"

int main(int argc, char **argv) {
    (void)argc;
    open_device();
    uint32_t *flag;
    CHECK(cuMemHostAlloc((void **)&flag, 4096, 0));
    *flag = 0;
    CUfunction spin = function("spin");
    void *parameters[] = {&flag};
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0));
    pause_here(argv);
    EXPECT_CODE(cuCtxSynchronize(), DEVICE_UNAVAILABLE);
    CUdeviceptr device;
    EXPECT_CODE(cuMemAlloc_v2(&device, 100), DEVICE_UNAVAILABLE);
    EXPECT_CODE(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0), DEVICE_UNAVAILABLE);
    EXPECT_CODE(cuMemFreeHost(flag), DEVICE_UNAVAILABLE);
    return ok();
}
