"""Graphs that are edited: edges and nodes come and go, copies are made, nodes rest, parameters are read back."""

import tempfile
from pathlib import Path

import numpy as np
from gpu import adder, call, download, driver, main, pack

Result = driver.CUresult


def setup():
    module, n, a, b = adder()
    stream = call("cuStreamCreate", 1)
    kept = []

    def kernel(array, value):
        slots, pointers = pack((array, value, n))
        kept.append((slots, pointers))
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func, node.gridDimX, node.gridDimY, node.gridDimZ = module.function("add"), n // 128, 1, 1
        node.blockDimX, node.blockDimY, node.blockDimZ, node.kernelParams = 128, 1, 1, pointers.ctypes.data
        return node

    def copy():
        copy = driver.CUDA_MEMCPY3D()
        copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.dstDevice, copy.WidthInBytes, copy.Height, copy.Depth = a, b, 4 * n, 1, 1
        return copy

    def fill(value):
        fill = driver.CUDA_MEMSET_NODE_PARAMS()
        fill.dst, fill.value, fill.elementSize, fill.width, fill.height = a, int(np.float32(value).view(np.uint32)), 4, n, 1
        return fill

    def gives(exec_, of_a, of_b):
        call("cuGraphLaunch", exec_, stream)
        call("cuStreamSynchronize", stream)
        assert np.all(download(a, n) == of_a) and np.all(download(b, n) == of_b), (download(a, 4), download(b, 4))

    def listed(name, *arguments):
        """A list that a driver function gives, without what is left over."""
        *lists, count = call(name, *arguments, 64)
        return [int(handle) for handle in lists[0][:count]]

    context = call("cuCtxGetCurrent")
    graph = call("cuGraphCreate", 0)
    # The order is made by edges alone: fill, add, copy.
    copies = call("cuGraphAddMemcpyNode", graph, [], 0, copy(), context)
    adds = call("cuGraphAddKernelNode", graph, [], 0, kernel(a, 2.0))
    fills = call("cuGraphAddMemsetNode", graph, [], 0, fill(10), context)
    gone = call("cuGraphAddKernelNode", graph, [fills], 1, kernel(a, 1000.0))
    call("cuGraphAddDependencies", graph, [fills, adds, gone], [adds, copies, adds], None, 3)
    made = call("cuGraphInstantiate", graph, 0)
    gives(made, 1012, 1012)
    call("cuGraphDestroyNode", gone)
    assert len(listed("cuGraphGetNodes", graph)) == 3
    assert listed("cuGraphNodeGetDependencies", adds) == [int(fills)]
    assert listed("cuGraphNodeGetDependentNodes", adds) == [int(copies)]
    assert listed("cuGraphGetRootNodes", graph) == [int(fills)]
    # The instance has what the graph had.
    gives(made, 1012, 1012)
    assert call("cuGraphExecUpdate", call("cuGraphInstantiate", graph, 0), graph).result.value == 0

    # A copy is by itself, and its nodes are found by those of the original.
    clone = call("cuGraphClone", graph)
    twin = call("cuGraphNodeFindInClone", fills, clone)
    call("cuGraphMemsetNodeSetParams", twin, fill(20))
    call("cuGraphRemoveDependencies", clone, [call("cuGraphNodeFindInClone", adds, clone)], [call("cuGraphNodeFindInClone", copies, clone)], None, 1)
    call("cuGraphAddDependencies", clone, [twin], [call("cuGraphNodeFindInClone", copies, clone)], None, 1)
    call("cuGraphAddDependencies", clone, [call("cuGraphNodeFindInClone", copies, clone)], [call("cuGraphNodeFindInClone", adds, clone)], None, 1)
    other = call("cuGraphInstantiate", clone, 0)
    gives(other, 22, 20)
    gives(call("cuGraphInstantiate", graph, 0), 12, 12)

    refused = {
        "an edge that is there": driver.cuGraphAddDependencies(graph, [fills], [adds], None, 1),
        "an edge that is not there": driver.cuGraphRemoveDependencies(graph, [adds], [fills], None, 1),
        "a node of another graph": driver.cuGraphAddDependencies(graph, [twin], [adds], None, 1),
        "the original in its copy's place": driver.cuGraphNodeFindInClone(twin, graph),
    }
    wrong = {what: code for what, (code, *_) in refused.items() if code != Result.CUDA_ERROR_INVALID_VALUE}
    assert not wrong, wrong
    circle = call("cuGraphClone", graph)
    call("cuGraphAddDependencies", circle, [call("cuGraphNodeFindInClone", copies, circle)], [call("cuGraphNodeFindInClone", fills, circle)], None, 1)
    assert driver.cuGraphInstantiate(circle, 0)[0] == Result.CUDA_ERROR_INVALID_VALUE

    # What nodes do, read back.
    read = call("cuGraphKernelNodeGetParams", adds)
    assert (read.gridDimX, read.blockDimX, int(read.func)) == (n // 128, 128, int(module.function("add")))
    pointers = np.frombuffer((np.ctypeslib.ctypes.c_uint8 * 24).from_address(int(read.kernelParams)), np.uint64)
    value = np.frombuffer((np.ctypeslib.ctypes.c_uint8 * 4).from_address(int(pointers[1])), np.float32)
    assert value[0] == 2.0, value
    assert call("cuGraphMemsetNodeGetParams", twin).value == fill(20).value
    back = call("cuGraphMemcpyNodeGetParams", copies)
    assert (int(back.srcDevice), int(back.dstDevice), back.WidthInBytes) == (int(a), int(b), 4 * n)
    assert driver.cuGraphMemsetNodeGetParams(adds)[0] == Result.CUDA_ERROR_INVALID_VALUE
    priority = driver.CUkernelNodeAttrID(8)
    value = driver.CUkernelNodeAttrValue()
    value.priority = -1
    call("cuGraphKernelNodeSetAttribute", adds, priority, value)
    assert call("cuGraphKernelNodeGetAttribute", adds, priority).priority == -1
    call("cuGraphKernelNodeCopyAttributes", call("cuGraphNodeFindInClone", adds, clone), adds)
    assert call("cuGraphKernelNodeGetAttribute", call("cuGraphNodeFindInClone", adds, clone), priority).priority == -1

    # A node of an instance rests, and is there again.
    call("cuGraphNodeSetEnabled", other, call("cuGraphNodeFindInClone", adds, clone), 0)
    gives(other, 20, 20)

    # Captured nodes are as others.
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
    kept.append(module.add(n // 128, 128, a, 1.0, n, stream=stream))
    kept.append(module.add(n // 128, 128, a, 3.0, n, stream=stream))
    captured = call("cuStreamEndCapture", stream)
    nodes, _ = call("cuGraphGetNodes", captured, 2)
    assert [int(node) for node in nodes] == listed("cuGraphGetRootNodes", captured) + listed("cuGraphNodeGetDependentNodes", nodes[0])
    twice = call("cuGraphInstantiate", captured, 0)
    call("cuGraphExecKernelNodeSetParams", twice, nodes[1], kernel(a, 30.0))
    call("cuGraphDestroyNode", nodes[0])
    once = call("cuGraphInstantiate", captured, 0)

    # What is changed of a graph in a node is changed in the node.
    outer = call("cuGraphCreate", 0)
    has = call("cuGraphAddChildGraphNode", outer, [], 0, graph)
    inside = call("cuGraphChildGraphNodeGetGraph", has)
    assert int(call("cuGraphChildGraphNodeGetGraph", has)) == int(inside)
    nodes = [node for node in call("cuGraphGetNodes", inside, 8)[0] if int(node)]
    copied, inner = ([node for node in nodes if int(call("cuGraphNodeGetType", node)) == kind] for kind in (1, 2))
    call("cuGraphMemsetNodeSetParams", inner[0], fill(70))
    call("cuGraphAddKernelNode", inside, copied, len(copied), kernel(b, 0.0))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        call("cuGraphDebugDotPrint", outer, str(path).encode(), 0)
        assert path.read_text().startswith("digraph") and "add" in path.read_text()

    def verify():
        gives(made, 1012, 1012)
        gives(other, 20, 20)
        resting = call("cuGraphNodeFindInClone", adds, clone)
        assert call("cuGraphNodeGetEnabled", other, resting) == 0
        call("cuGraphNodeSetEnabled", other, resting, 1)
        gives(other, 22, 20)
        gives(twice, 53, 20)
        gives(once, 56, 20)
        gives(call("cuGraphInstantiate", outer, 0), 72, 72)
        call("cuGraphMemsetNodeSetParams", inner[0], fill(80))
        gives(call("cuGraphInstantiate", outer, 0), 82, 82)
        call("cuGraphAddDependencies", graph, [fills], [copies], None, 1)
        assert len(listed("cuGraphNodeGetDependencies", copies)) == 2
        gives(call("cuGraphInstantiate", graph, 0), 12, 12)
        for handle in (graph, clone, circle, captured, outer):
            call("cuGraphDestroy", handle)

    return verify


main(setup)
