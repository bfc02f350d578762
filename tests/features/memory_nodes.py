"""Memory that graphs take and give back, captured and built, and who has it when."""

import numpy as np
from gpu import adder, call, download, driver, main, pack

Result = driver.CUresult


def setup():
    module, n, a, _ = adder()
    stream, context = call("cuStreamCreate", 1), call("cuCtxGetCurrent")
    kept = []

    def kernel(array, value):
        slots, pointers = pack((array, value, n))
        kept.append((slots, pointers))
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func, node.gridDimX, node.gridDimY, node.gridDimZ = module.function("add"), n // 128, 1, 1
        node.blockDimX, node.blockDimY, node.blockDimZ, node.kernelParams = 128, 1, 1, pointers.ctypes.data
        return node

    def copy(to, from_):
        copy = driver.CUDA_MEMCPY3D()
        copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.dstDevice, copy.WidthInBytes, copy.Height, copy.Depth = from_, to, 4 * n, 1, 1
        return copy

    def take(graph, after):
        wanted = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
        wanted.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.poolProps.location.id, wanted.bytesize = 0, 4 * n
        node = call("cuGraphAddMemAllocNode", graph, after, len(after), wanted)
        return node, int(call("cuGraphMemAllocNodeGetParams", node).dptr)

    def used():
        return int(call("cuDeviceGetGraphMemAttribute", 0, driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT))

    # Taken and given back in one graph: what is computed there is copied out in between.
    graph = call("cuGraphCreate", 0)
    node, scratch = take(graph, [])
    node = call("cuGraphAddMemcpyNode", graph, [node], 1, copy(scratch, a), context)
    node = call("cuGraphAddKernelNode", graph, [node], 1, kernel(scratch, 1.0))
    node = call("cuGraphAddMemcpyNode", graph, [node], 1, copy(a, scratch), context)
    frees = call("cuGraphAddMemFreeNode", graph, [node], 1, scratch)
    assert int(call("cuGraphMemFreeNodeGetParams", frees)) == scratch
    assert [int(call("cuGraphNodeGetType", frees))] == [11]
    inside = call("cuGraphInstantiate", graph, 0)

    # Left to the program, and freed by it or by another graph.
    leaving = call("cuGraphCreate", 0)
    node, left = take(leaving, [])
    call("cuGraphAddMemcpyNode", leaving, [node], 1, copy(left, a), context)
    leaves = call("cuGraphInstantiate", leaving, 0)
    freeing = call("cuGraphCreate", 0)
    call("cuGraphAddMemFreeNode", freeing, [], 0, left)
    takes_back = call("cuGraphInstantiate", freeing, 0)

    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
    captured_scratch = call("cuMemAllocAsync", 4 * n, stream)
    call("cuMemcpyDtoDAsync", captured_scratch, a, 4 * n, stream)
    kept.append(module.add(n // 128, 128, captured_scratch, 10.0, n, stream=stream))
    call("cuMemcpyDtoDAsync", a, captured_scratch, 4 * n, stream)
    call("cuMemFreeAsync", captured_scratch, stream)
    captured_graph = call("cuStreamEndCapture", stream)
    nodes, count = call("cuGraphGetNodes", captured_graph, 8)
    assert [int(call("cuGraphNodeGetType", node)) for node in nodes[:count]] == [10, 1, 0, 1, 11]
    captured = call("cuGraphInstantiate", captured_graph, 0)

    def launch(exec_):
        call("cuGraphLaunch", exec_, stream)
        call("cuStreamSynchronize", stream)

    for _ in range(2):
        launch(inside)
        launch(captured)
    assert np.all(download(a, n) == 22)
    launch(leaves)
    assert used() >= 4 * n
    assert np.all(download(left, n) == 22)

    refused = {
        "memory that is the program's still": driver.cuGraphLaunch(leaves, stream),
        "memory twice": driver.cuGraphAddMemFreeNode(graph, [], 0, scratch),
        "memory of no graph": driver.cuGraphAddMemFreeNode(graph, [], 0, a),
        "a second instance": driver.cuGraphInstantiate(graph, 0),
        "a copy": driver.cuGraphClone(graph),
        "a node that takes memory": driver.cuGraphDestroyNode(frees),
    }
    wrong = [what for what, (code, *_) in refused.items() if code == Result.CUDA_SUCCESS]
    assert not wrong, wrong

    def verify():
        launch(captured)
        launch(inside)
        assert np.all(download(left, n) == 22), "what a launch left is there"
        assert np.all(download(a, n) == 33)
        launch(takes_back)
        launch(leaves)
        assert np.all(download(left, n) == 33)
        call("cuMemFreeAsync", left, stream)
        launch(leaves)
        call("cuMemFree", left)
        assert driver.cuMemFree(left)[0] == Result.CUDA_ERROR_INVALID_VALUE
        call("cuGraphExecDestroy", inside)
        again = call("cuGraphInstantiate", graph, 0)
        launch(again)
        assert np.all(download(a, n) == 34)
        for exec_ in (again, captured, leaves, takes_back):
            call("cuGraphExecDestroy", exec_)
        for handle in (graph, captured_graph, leaving, freeing):
            call("cuGraphDestroy", handle)
        call("cuCtxSynchronize")
        call("cuDeviceGraphMemTrim", 0)
        reserved = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
        assert int(call("cuDeviceGetGraphMemAttribute", 0, reserved)) == 0

    return verify


main(setup)
