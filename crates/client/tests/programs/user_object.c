/* A user object lives as long as the graphs that hold it, and is destroyed once. */
#include "cuda_min.h"

typedef struct object *CUuserObject;
CUresult cuUserObjectCreate(CUuserObject *, void *, void (*)(void *), unsigned, unsigned);
CUresult cuUserObjectRetain(CUuserObject, unsigned);
CUresult cuUserObjectRelease(CUuserObject, unsigned);
CUresult cuGraphRetainUserObject(CUgraph, CUuserObject, unsigned, unsigned);
CUresult cuGraphCreate(CUgraph *, unsigned);

static void gone(void *count) {
    ++*(int *)count;
}

int main(int argc, char **argv) {
    (void)argc;
    int count = 0;
    CUuserObject object;
    CUgraph graph;
    CUgraphExec exec;
    open_device();
    EXPECT_CODE(cuUserObjectCreate(&object, &count, gone, 1, 0), INVALID_VALUE);
    CHECK(cuUserObjectCreate(&object, &count, gone, 1, 1));
    CHECK(cuUserObjectRetain(object, 2));
    CHECK(cuUserObjectRelease(object, 2));
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphRetainUserObject(graph, object, 1, 1));
    EXPECT_CODE(cuUserObjectRelease(object, 1), INVALID_HANDLE);
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    pause_here(argv);
    CHECK(cuGraphDestroy(graph));
    EXPECT(count == 0);
    CHECK(cuGraphExecDestroy(exec));
    EXPECT(count == 1);
    return ok();
}
