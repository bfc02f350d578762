/* Many threads, each with a default stream of its own and its place in the order; threads come and go. */
#include <pthread.h>

#include "cuda_min.h"

static CUcontext context;
static CUfunction scale;
static CUdeviceptr shared;

static void *work(void *argument) {
    uint32_t number = (uint32_t)(uintptr_t)argument, seen[256];
    CUdeviceptr mine;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&mine, sizeof seen));
    for (int i = 0; i < 256; i++) seen[i] = number;
    CHECK(cuMemcpyHtoD_v2_ptds(mine, seen, sizeof seen));
    uint32_t by = 3;
    void *parameters[] = {&mine, &by};
    for (int i = 0; i < 5; i++) CHECK(cuLaunchKernel_ptsz(scale, 1, 1, 1, 256, 1, 1, 0, 0, parameters, 0));
    CHECK(cuStreamSynchronize_ptsz(0));
    CHECK(cuMemcpyDtoH_v2(seen, mine, sizeof seen));
    for (int i = 0; i < 256; i++) EXPECT(seen[i] == number * 243);
    CHECK(cuMemFree_v2(mine));
    return 0;
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

/* What is enqueued under a lock runs in the order of the lock, whichever thread does it. */
static void *step(void *argument) {
    (void)argument;
    CHECK(cuCtxSetCurrent(context));
    for (int i = 0; i < 50; i++) {
        uint32_t by = 3;
        void *parameters[] = {&shared, &by};
        pthread_mutex_lock(&turn);
        CHECK(cuLaunchKernel(scale, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0));
        pthread_mutex_unlock(&turn);
    }
    return 0;
}

int main(int argc, char **argv) {
    (void)argc;
    context = open_device();
    scale = function("scale");
    pthread_t threads[16];
    for (int round = 0; round < 4; round++) {
        for (uintptr_t i = 0; i < 16; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
        for (int i = 0; i < 16; i++) pthread_join(threads[i], 0);
    }
    pause_here(argv);
    uint32_t value = 1, expected = 1;
    CHECK(cuMemAlloc_v2(&shared, 4));
    CHECK(cuMemcpyHtoD_v2(shared, &value, 4));
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, step, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < 200; i++) expected *= 3;
    CHECK(cuMemcpyDtoH_v2(&value, shared, 4));
    EXPECT(value == expected);
    return ok();
}
