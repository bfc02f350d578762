/* Threads that never stop calling: launches, copies both ways, new streams and events, allocations. It runs until the
 * file named by the first argument is there, and every result is checked. Checkpoints may come at any time. */
#include <pthread.h>

#include "cuda_min.h"

static CUcontext context;
static CUfunction scale;
static const char *end;

static void *work(void *argument) {
    uint32_t number = (uint32_t)(uintptr_t)argument, by = 3, expected, seen[256];
    CHECK(cuCtxSetCurrent(context));
    for (int round = 0; access(end, F_OK); round++) {
        CUdeviceptr data;
        CUstream stream;
        CUevent event;
        CHECK(cuMemAlloc_v2(&data, sizeof seen));
        CHECK(cuStreamCreate(&stream, 1));
        CHECK(cuEventCreate(&event, 2));
        expected = number + (uint32_t)round;
        for (int i = 0; i < 256; i++) seen[i] = expected;
        CHECK(cuMemcpyHtoDAsync_v2(data, seen, sizeof seen, stream));
        void *parameters[] = {&data, &by};
        for (int i = 0; i < 20; i++, expected *= 3)
            CHECK(cuLaunchKernel(scale, 1, 1, 1, 256, 1, 1, 0, stream, parameters, 0));
        CHECK(cuEventRecord(event, stream));
        CHECK(cuEventSynchronize(event));
        CHECK(cuMemcpyDtoHAsync_v2(seen, data, sizeof seen, stream));
        CHECK(cuStreamSynchronize(stream));
        for (int i = 0; i < 256; i++) EXPECT(seen[i] == expected);
        CHECK(cuMemFree_v2(data));
        CHECK(cuEventDestroy_v2(event));
        CHECK(cuStreamDestroy_v2(stream));
    }
    return 0;
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    end = argc > 1 ? argv[1] : "/";
    context = open_device();
    scale = function("scale");
    printf("ready\n");
    fflush(stdout);
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    return ok();
}
