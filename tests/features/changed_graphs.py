"""What nodes do is changed in an instance and in its graph, before a checkpoint and after, also without a launch in between."""

import numpy as np
from gpu import adder, call, download, driver, main, open_device, pack

Result = driver.CUresult


def setup():
    module, n, a, b = adder()
    context, stream = open_device(), call("cuStreamCreate", 1)
    kept = []

    def kernel(array, value):
        slots, pointers = pack((array, value, n))
        kept.append((slots, pointers))
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func, node.gridDimX, node.gridDimY, node.gridDimZ = module.function("add"), n // 128, 1, 1
        node.blockDimX, node.blockDimY, node.blockDimZ, node.kernelParams = 128, 1, 1, pointers.ctypes.data
        return node

    def copy(words):
        """The first words of `a` to `b`."""
        copy = driver.CUDA_MEMCPY3D()
        copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.dstDevice, copy.WidthInBytes, copy.Height, copy.Depth = a, b, 4 * words, 1, 1
        return copy

    def fill(value):
        """The first four words of `b`."""
        fill = driver.CUDA_MEMSET_NODE_PARAMS()
        fill.dst, fill.value, fill.elementSize, fill.width, fill.height = b, int(np.float32(value).view(np.uint32)), 4, 4, 1
        return fill

    def captured(value):
        call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
        kept.append(module.add(n // 128, 128, b, value, n, stream=stream))
        return call("cuStreamEndCapture", stream)

    graph, child = call("cuGraphCreate", 0), captured(1.0)
    adds = call("cuGraphAddKernelNode", graph, [], 0, kernel(a, 1.0))
    copies = call("cuGraphAddMemcpyNode", graph, [adds], 1, copy(n), context)
    fills = call("cuGraphAddMemsetNode", graph, [copies], 1, fill(7), context)
    has = call("cuGraphAddChildGraphNode", graph, [fills], 1, child)
    made = call("cuGraphInstantiate", graph, 0)

    def gives(exec_, first, of_a, of_b):
        call("cuGraphLaunch", exec_, stream)
        call("cuStreamSynchronize", stream)
        found = download(b, n)
        assert np.all(download(a, n) == of_a) and np.all(found[4:] == of_b) and np.all(found[:4] == first), (download(a, 8), found[:8])

    gives(made, 8, 1, 2)
    # Two launches under way have each their own.
    for value in (10.0, 100.0):
        call("cuGraphExecKernelNodeSetParams", made, adds, kernel(a, value))
        call("cuGraphLaunch", made, stream)
    call("cuGraphExecMemsetNodeSetParams", made, fills, fill(20), context)
    call("cuGraphExecChildGraphNodeSetParams", made, has, captured(3.0))
    gives(made, 23, 211, 214)
    call("cuGraphExecMemcpyNodeSetParams", made, copies, copy(16), context)
    call("cuGraphLaunch", made, stream)
    call("cuStreamSynchronize", stream)
    assert np.all(download(b, n)[16:] == 217) and np.all(download(b, n)[4:16] == 314)

    # The graph has what it had, and what is changed there is in what is made of it later.
    call("cuGraphKernelNodeSetParams", adds, kernel(a, 0.0))
    other = call("cuGraphInstantiate", graph, 0)
    gives(other, 8, 311, 312)

    refused = {
        "a kernel where a copy is": driver.cuGraphExecKernelNodeSetParams(made, copies, kernel(a, 1.0)),
        "a node of another graph": driver.cuGraphExecKernelNodeSetParams(
            made, call("cuGraphAddKernelNode", call("cuGraphCreate", 0), [], 0, kernel(a, 1.0)), kernel(a, 1.0)
        ),
        "too many threads": driver.cuGraphExecKernelNodeSetParams(made, adds, wide(kernel(a, 1.0))),
    }
    wrong = {what: code for what, (code, *_) in refused.items() if code != Result.CUDA_ERROR_INVALID_VALUE}
    assert not wrong, wrong
    (nodes, _), alone = call("cuGraphGetNodes", child, 4), call("cuGraphInstantiate", child, 0)
    # A captured node too.
    call("cuGraphExecKernelNodeSetParams", alone, nodes[0], kernel(b, 500.0))
    gives(alone, 508, 311, 812)

    def update(exec_, of):
        return call("cuGraphExecUpdate", exec_, of).result == driver.CUgraphExecUpdateResult.CU_GRAPH_EXEC_UPDATE_SUCCESS

    assert driver.cuGraphExecUpdate(made, child)[0] == Result.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    assert update(alone, captured(30.0))
    # Of these nothing is launched before the checkpoint.
    call("cuGraphExecKernelNodeSetParams", made, adds, kernel(a, 1000.0))
    call("cuGraphExecMemcpyNodeSetParams", made, copies, copy(n), context)
    call("cuGraphKernelNodeSetParams", adds, kernel(a, 2000.0))

    def verify():
        gives(made, 23, 1311, 1314)
        call("cuGraphExecMemsetNodeSetParams", made, fills, fill(50), context)
        gives(made, 53, 2311, 2314)
        gives(call("cuGraphInstantiate", graph, 0), 8, 4311, 4312)
        assert update(made, graph)
        gives(made, 8, 6311, 6312)
        call("cuGraphLaunch", alone, stream)
        call("cuStreamSynchronize", stream)
        assert np.all(download(b, n)[4:] == 6342)

    return verify


def wide(node):
    node.blockDimX = 4096
    return node


main(setup)
