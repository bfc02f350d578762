/* What cannot be done with nodes and graphs is refused as the driver refuses it, and changes nothing. */
#include "cuda_min.h"

enum { ILLEGAL_STATE = 401, EVENT_RECORD = 7 };

struct host_node {
    void (*function)(void *);
    void *data;
};

CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphAddEmptyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t);
CUresult cuGraphAddHostNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct host_node *);
CUresult cuGraphHostNodeGetParams(CUgraphNode, struct host_node *);
CUresult cuGraphHostNodeSetParams(CUgraphNode, const struct host_node *);
CUresult cuGraphExecHostNodeSetParams(CUgraphExec, CUgraphNode, const struct host_node *);
CUresult cuGraphAddEventRecordNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent);
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode, CUevent *);
CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuGraphRemoveDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuGraphDestroyNode(CUgraphNode);
CUresult cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
CUresult cuGraphClone(CUgraph *, CUgraph);
CUresult cuGraphNodeFindInClone(CUgraphNode *, CUgraphNode, CUgraph);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode, CUgraph *);
CUresult cuGraphNodeSetEnabled(CUgraphExec, CUgraphNode, unsigned);
CUresult cuGraphNodeGetType(CUgraphNode, int *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
CUresult cuGraphConditionalHandleCreate(uint64_t *, CUgraph, CUcontext, unsigned, unsigned);
CUresult cuDeviceGetGraphMemAttribute(CUdevice, int, void *);
CUresult cuDeviceSetGraphMemAttribute(CUdevice, int, void *);
CUresult cuStreamUpdateCaptureDependencies(CUstream, CUgraphNode *, size_t, unsigned);
CUresult cuStreamBeginCaptureToGraph(CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int);

static int calls;

static void count(void *by) {
    __atomic_fetch_add(&calls, (int)(intptr_t)by, __ATOMIC_SEQ_CST);
}

int main(int argc, char **argv) {
    (void)argc;
    CUcontext context = open_device();
    CUgraph graph, other, clone;
    CUgraphNode nodes[3], foreign, found;
    CUgraphExec exec;
    CUevent event, recorded;
    CUstream stream;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphCreate(&other, 0));

    struct host_node none = {0, 0}, one = {count, (void *)1}, ten = {count, (void *)10}, read;
    EXPECT_CODE(cuGraphAddHostNode(&nodes[0], graph, 0, 0, &none), INVALID_VALUE);
    EXPECT_CODE(cuGraphAddHostNode(&nodes[0], graph, 0, 0, 0), INVALID_VALUE);
    EXPECT_CODE(cuGraphAddHostNode(0, graph, 0, 0, &one), INVALID_VALUE);
    EXPECT_CODE(cuGraphAddHostNode(&nodes[0], (CUgraph)8, 0, 0, &one), INVALID_HANDLE);
    CHECK(cuGraphAddHostNode(&nodes[0], graph, 0, 0, &one));
    CHECK(cuGraphAddEmptyNode(&nodes[1], graph, &nodes[0], 1));
    EXPECT_CODE(cuGraphAddEventRecordNode(&nodes[2], graph, &nodes[1], 1, (CUevent)8), INVALID_HANDLE);
    CHECK(cuGraphAddEventRecordNode(&nodes[2], graph, &nodes[1], 1, event));
    CHECK(cuGraphAddEmptyNode(&foreign, other, 0, 0));
    size_t known = 0;
    CHECK(cuGraphGetNodes(graph, 0, &known));
    EXPECT(known == 3);

    EXPECT_CODE(cuGraphHostNodeGetParams(nodes[1], &read), INVALID_VALUE);
    EXPECT_CODE(cuGraphHostNodeSetParams(nodes[1], &one), INVALID_VALUE);
    EXPECT_CODE(cuGraphHostNodeGetParams(nodes[0], 0), INVALID_VALUE);
    CHECK(cuGraphHostNodeGetParams(nodes[0], &read));
    EXPECT(read.function == count && read.data == (void *)1);
    EXPECT_CODE(cuGraphEventRecordNodeGetEvent(nodes[0], &recorded), INVALID_VALUE);
    CHECK(cuGraphEventRecordNodeGetEvent(nodes[2], &recorded));
    EXPECT(recorded == event);
    EXPECT_CODE(cuGraphChildGraphNodeGetGraph(nodes[1], &clone), INVALID_VALUE);

    EXPECT_CODE(cuGraphAddDependencies(graph, &nodes[0], &nodes[1], 1), INVALID_VALUE);
    EXPECT_CODE(cuGraphAddDependencies(graph, &nodes[0], &nodes[0], 1), INVALID_VALUE);
    EXPECT_CODE(cuGraphAddDependencies(graph, &nodes[0], &foreign, 1), INVALID_VALUE);
    EXPECT_CODE(cuGraphAddDependencies(graph, &nodes[0], 0, 1), INVALID_VALUE);
    EXPECT_CODE(cuGraphRemoveDependencies(graph, &nodes[0], &nodes[2], 1), INVALID_VALUE);
    CHECK(cuGraphRemoveDependencies(graph, 0, 0, 0));
    EXPECT_CODE(cuGraphClone(0, graph), INVALID_VALUE);
    CHECK(cuGraphClone(&clone, graph));
    EXPECT_CODE(cuGraphNodeFindInClone(&found, foreign, clone), INVALID_VALUE);
    CHECK(cuGraphNodeFindInClone(&found, nodes[2], clone));
    int kind;
    CHECK(cuGraphNodeGetType(found, &kind));
    EXPECT(kind == EVENT_RECORD);
    CHECK(cuGraphDestroyNode(foreign));
    EXPECT_CODE(cuGraphDestroyNode(foreign), INVALID_HANDLE);
    EXPECT_CODE(cuGraphAddMemFreeNode(&found, other, 0, 0, 4096), INVALID_VALUE);

    CUgraph outer, inside;
    CUgraphNode has;
    CHECK(cuGraphCreate(&outer, 0));
    EXPECT_CODE(cuGraphAddChildGraphNode(&has, outer, 0, 0, outer), INVALID_VALUE);
    CHECK(cuGraphAddChildGraphNode(&has, outer, 0, 0, graph));
    CHECK(cuGraphChildGraphNodeGetGraph(has, &inside));
    CHECK(cuGraphGetNodes(inside, 0, &known));
    EXPECT(known == 3);
    EXPECT_CODE(cuGraphDestroy(inside), INVALID_VALUE);
    CHECK(cuGraphDestroyNode(has));
    EXPECT_CODE(cuGraphGetNodes(inside, 0, &known), INVALID_HANDLE);
    CHECK(cuGraphDestroy(outer));

    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT_CODE(cuGraphNodeSetEnabled(exec, nodes[0], 0), INVALID_VALUE);
    EXPECT_CODE(cuGraphExecHostNodeSetParams(exec, nodes[1], &ten), INVALID_VALUE);
    EXPECT_CODE(cuGraphExecHostNodeSetParams(exec, nodes[0], &none), INVALID_VALUE);
    CUgraphNode twin;
    CHECK(cuGraphNodeFindInClone(&twin, nodes[0], clone));
    EXPECT_CODE(cuGraphExecHostNodeSetParams(exec, twin, &ten), INVALID_VALUE);
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(calls == 1);
    for (int i = 0; i < 200; i++) {
        struct host_node next = {count, (void *)(intptr_t)i};
        CHECK(cuGraphExecHostNodeSetParams(exec, nodes[0], &next));
    }
    pause_here(argv);
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(calls == 200);

    uint64_t handle, value = 1;
    CUgraphExec nothing;
    EXPECT_CODE(cuGraphConditionalHandleCreate(0, other, context, 0, 0), INVALID_VALUE);
    EXPECT_CODE(cuGraphConditionalHandleCreate(&handle, other, context, 0, 8), INVALID_VALUE);
    CHECK(cuGraphConditionalHandleCreate(&handle, other, context, 0, 1));
    EXPECT_CODE(cuGraphInstantiateWithFlags(&nothing, other, 0), INVALID_VALUE);
    EXPECT_CODE(cuDeviceGetGraphMemAttribute(0, 9, &value), INVALID_VALUE);
    EXPECT_CODE(cuDeviceSetGraphMemAttribute(0, 0, &value), INVALID_VALUE);
    EXPECT_CODE(cuDeviceSetGraphMemAttribute(0, 1, &value), INVALID_VALUE);
    CHECK(cuDeviceGetGraphMemAttribute(0, 2, &value));
    EXPECT(value == 0);

    EXPECT_CODE(cuStreamUpdateCaptureDependencies(stream, 0, 0, 1), ILLEGAL_STATE);
    EXPECT_CODE(cuStreamBeginCaptureToGraph(stream, clone, &nodes[0], 0, 1, 0), INVALID_VALUE);
    CHECK(cuStreamBeginCaptureToGraph(stream, clone, &twin, 0, 1, 0));
    EXPECT_CODE(cuGraphDestroy(clone), INVALID_VALUE);
    CHECK(cuLaunchHostFunc(stream, count, (void *)1000));
    CHECK(cuStreamEndCapture(stream, &other));
    EXPECT(other == clone);
    CHECK(cuGraphInstantiateWithFlags(&nothing, clone, 0));
    CHECK(cuGraphLaunch(nothing, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(calls == 1201);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuGraphDestroy(clone));
    EXPECT_CODE(cuGraphNodeGetType(nodes[1], &kind), INVALID_HANDLE);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphExecDestroy(nothing));
    return ok();
}
