/* Allocate, copy, launch with parameters and with a packed buffer, copy back. */
#include "cuda_min.h"

int main(int argc, char **argv) {
    enum { N = 100003 };
    static uint32_t a[N], b[N], out[N];
    (void)argc;
    open_device();
    CUfunction add = function("add");
    for (uint32_t i = 0; i < N; i++) a[i] = i, b[i] = 3 * i + 1;
    CUdeviceptr da, db, dout;
    CHECK(cuMemAlloc_v2(&da, sizeof a));
    CHECK(cuMemAlloc_v2(&db, sizeof b));
    CHECK(cuMemAlloc_v2(&dout, sizeof out));
    CHECK(cuMemcpyHtoD_v2(da, a, sizeof a));
    CHECK(cuMemcpyHtoD_v2(db, b, sizeof b));
    pause_here(argv);
    uint32_t n = N;
    void *parameters[] = {&dout, &da, &db, &n};
    CHECK(cuLaunchKernel(add, (N + 255) / 256, 1, 1, 256, 1, 1, 0, 0, parameters, 0));
    CHECK(cuMemcpyDtoH_v2(out, dout, sizeof out));
    for (uint32_t i = 0; i < N; i++) EXPECT(out[i] == 4 * i + 1);

    struct { CUdeviceptr out, a, b; uint32_t n; } packed = {dout, da, da, N};
    size_t size = sizeof packed;
    void *extra[] = {(void *)1, &packed, (void *)2, &size, 0};
    CHECK(cuLaunchKernel(add, (N + 255) / 256, 1, 1, 256, 1, 1, 0, 0, 0, extra));
    CHECK(cuMemcpyDtoH_v2(out, dout, sizeof out));
    for (uint32_t i = 0; i < N; i++) EXPECT(out[i] == 2 * i);
    CHECK(cuMemFree_v2(da));
    EXPECT_CODE(cuMemFree_v2(da), INVALID_VALUE);
    return ok();
}
