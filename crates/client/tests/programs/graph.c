/* A captured graph with kernels and a fill runs as often as it is launched. */
#include "cuda_min.h"

static int calls;

static void count(void *argument) {
    __atomic_fetch_add((int *)argument, 1, __ATOMIC_SEQ_CST);
}

int main(int argc, char **argv) {
    (void)argc;
    open_device();
    CUdeviceptr a, b;
    CHECK(cuMemAlloc_v2(&a, 4096));
    CHECK(cuMemAlloc_v2(&b, 4096));
    CUfunction scale = function("scale");
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemsetD32Async(a, 1, 1024, stream));
    CHECK(cuStreamSynchronize(stream));
    uint32_t by = 3;
    void *parameters[] = {&a, &by};
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    for (int i = 0; i < 3; i++) CHECK(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, stream, parameters, 0));
    CHECK(cuLaunchHostFunc(stream, count, &calls));
    CHECK(cuMemsetD32Async(b, 8, 1024, stream));
    static uint32_t pageable[4];
    CHECK(cuMemcpyHtoDAsync_v2(b, pageable, 16, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CHECK(cuGraphGetNodes(graph, 0, &nodes));
    EXPECT(nodes == 6);
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    pause_here(argv);
    EXPECT(calls == 0);
    for (int i = 0; i < 3; i++) CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(calls == 3);
    pageable[3] = 77;
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    uint32_t brought[5];
    CHECK(cuMemcpyDtoH_v2(brought, b, sizeof brought));
    EXPECT(brought[2] == 0 && brought[3] == 77 && brought[4] == 8);
    uint32_t seen[1024];
    CHECK(cuMemcpyDtoH_v2(seen, a, sizeof seen));
    EXPECT(seen[0] == 531441 && seen[1023] == 531441);
    CHECK(cuLaunchHostFunc(stream, count, &calls));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(calls == 5);
    CHECK(cuGraphExecDestroy(exec));
    EXPECT_CODE(cuGraphLaunch(exec, stream), INVALID_HANDLE);
    return ok();
}
