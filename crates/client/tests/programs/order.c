/* Streams run beside each other, events order them, the legacy stream waits for blocking streams. */
#include "cuda_min.h"

int main(int argc, char **argv) {
    (void)argc;
    open_device();
    uint32_t *flag;
    CHECK(cuMemHostAlloc((void **)&flag, 4096, 0));
    *flag = 0;
    CUdeviceptr device;
    CHECK(cuMemAlloc_v2(&device, 4096));
    CUstream one, two;
    CUevent event;
    CHECK(cuStreamCreate(&one, 1));
    CHECK(cuStreamCreate(&two, 1));
    CHECK(cuEventCreate(&event, 2));
    EXPECT_CODE(cuEventQuery(event), 0);

    CUfunction spin = function("spin"), scale = function("scale");
    void *spin_parameters[] = {&flag};
    uint32_t by = 5;
    void *scale_parameters[] = {&device, &by};
    CHECK(cuMemsetD32Async(device, 7, 1024, one));
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, one, spin_parameters, 0));
    CHECK(cuEventRecord(event, one));
    CHECK(cuStreamWaitEvent(two, event, 0));
    CHECK(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, two, scale_parameters, 0));
    EXPECT_CODE(cuStreamQuery(one), NOT_READY);
    EXPECT_CODE(cuStreamQuery(two), NOT_READY);
    EXPECT_CODE(cuEventQuery(event), NOT_READY);
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    CHECK(cuStreamSynchronize(two));
    CHECK(cuEventSynchronize(event));
    pause_here(argv);
    uint32_t seen[1024];
    CHECK(cuMemcpyDtoH_v2(seen, device, sizeof seen));
    for (int i = 0; i < 1024; i++) EXPECT(seen[i] == 35);

    /* A blocking stream's work comes before the legacy stream's next. */
    CUstream blocking;
    CHECK(cuStreamCreate(&blocking, 0));
    for (int i = 0; i < 20; i++) CHECK(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, blocking, scale_parameters, 0));
    CHECK(cuMemsetD32Async(device, 2, 1024, 0));
    CHECK(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, blocking, scale_parameters, 0));
    CHECK(cuMemcpyDtoH_v2(seen, device, sizeof seen));
    for (int i = 0; i < 1024; i++) EXPECT(seen[i] == 10);

    /* The thread's own default stream. */
    CHECK(cuLaunchKernel_ptsz(scale, 4, 1, 1, 256, 1, 1, 0, 0, scale_parameters, 0));
    CHECK(cuStreamSynchronize_ptsz(0));
    CHECK(cuMemcpyDtoH_v2(seen, device, sizeof seen));
    EXPECT(seen[0] == 50);
    CHECK(cuStreamDestroy_v2(one));
    EXPECT_CODE(cuStreamSynchronize(one), INVALID_HANDLE);
    EXPECT_CODE(cuStreamSynchronize((CUstream)0x1234), INVALID_HANDLE);
    EXPECT_CODE(cuStreamSynchronize((CUstream)event), INVALID_HANDLE);
    return ok();
}
