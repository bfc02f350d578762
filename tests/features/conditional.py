"""Conditional nodes: a loop, a choice of two, a switch, and one within another, by values that kernels set."""

import ctypes

import numpy as np
from gpu import call, conditional_module, download, driver, main, open_device, pack, upload

SOURCE = """
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
extern "C" __global__ void count(unsigned *words, unsigned long long handle, unsigned most) {
    words[0] += 1;
    cudaGraphSetConditional(handle, words[0] < most);
}
extern "C" __global__ void choose(const unsigned *words, unsigned long long handle) {
    cudaGraphSetConditional(handle, words[1]);
}
extern "C" __global__ void add(unsigned *words, unsigned at, unsigned value) { words[at] += value; }
"""
IF, WHILE, SWITCH = range(3)
KERNEL, CONDITIONAL = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL, driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL


def setup():
    context = open_device()
    code = conditional_module(SOURCE)
    count, choose, add = (call("cuModuleGetFunction", code, name) for name in (b"count", b"choose", b"add"))
    stream = call("cuStreamCreate", 1)
    words = int(upload(np.zeros(8, np.uint32)))
    kept = []

    def kernel(function, *arguments):
        slots, pointers = pack(arguments)
        kept.append((slots, pointers))
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func, node.gridDimX, node.gridDimY, node.gridDimZ = function, 1, 1, 1
        node.blockDimX, node.blockDimY, node.blockDimZ, node.kernelParams = 1, 1, 1, pointers.ctypes.data
        return node

    def handle(graph, default=None):
        flags = 0 if default is None else 1
        return int(call("cuGraphConditionalHandleCreate", graph, context, default or 0, flags))

    def conditional(graph, after, condition, kind, size):
        """The bodies."""
        wanted = driver.CUgraphNodeParams()
        wanted.type = CONDITIONAL
        wanted.conditional.handle, wanted.conditional.size = condition, size
        wanted.conditional.type, wanted.conditional.ctx = driver.CUgraphConditionalNodeType(kind), context
        edges = [driver.CUgraphEdgeData() for _ in after] or None
        node = call("cuGraphAddNode", graph, after, edges, len(after), wanted)
        assert call("cuGraphNodeGetType", node) == CONDITIONAL
        place = ctypes.c_uint64.from_address(wanted.conditional.getPtr() + 16).value
        return [driver.CUgraph(body) for body in (ctypes.c_uint64 * size).from_address(place)], node

    def gives(exec_, *expected, choice=0):
        call("cuMemsetD32Async", words, 0, 8, stream)
        call("cuMemsetD32Async", words + 4, choice, 1, stream)
        call("cuGraphLaunch", exec_, stream)
        call("cuStreamSynchronize", stream)
        found = download(words, 6, np.uint32).tolist()
        assert found == [expected[0], choice, *expected[1:]], (found, expected, choice)

    # As often as the kernel in the body says; in each turn a choice of two.
    loop = call("cuGraphCreate", 0)
    again = handle(loop, 1)
    (body,), turns = conditional(loop, [], again, WHILE, 1)
    counts = call("cuGraphAddKernelNode", body, [], 0, kernel(count, words, again, 5))
    inner = handle(body)
    chooses = call("cuGraphAddKernelNode", body, [counts], 1, kernel(choose, words, inner))
    (yes, no), _ = conditional(body, [chooses], inner, IF, 2)
    adds = call("cuGraphAddKernelNode", yes, [], 0, kernel(add, words, 2, 1))
    call("cuGraphAddKernelNode", no, [], 0, kernel(add, words, 3, 1))
    call("cuGraphAddKernelNode", loop, [turns], 1, kernel(add, words, 5, 100))
    looping = call("cuGraphInstantiate", loop, 0)

    # One body of several, the last of which was captured.
    switch = call("cuGraphCreate", 0)
    which = handle(switch)
    chooses_one = call("cuGraphAddKernelNode", switch, [], 0, kernel(choose, words, which))
    bodies, _ = conditional(switch, [chooses_one], which, SWITCH, 3)
    for number, graph in enumerate(bodies[:2]):
        call("cuGraphAddKernelNode", graph, [], 0, kernel(add, words, 2 + number, 10))
    call("cuStreamBeginCaptureToGraph", stream, bodies[2], None, None, 0, driver.CUstreamCaptureMode(0))
    for value in (30, 3):
        slots, pointers = pack((words, 4, value))
        kept.append((slots, pointers))
        call("cuLaunchKernel", add, 1, 1, 1, 1, 1, 1, 0, stream, pointers.ctypes.data, 0)
    call("cuStreamEndCapture", stream)
    switching = call("cuGraphInstantiate", switch, 0)

    unused = call("cuGraphCreate", 0)
    handle(unused)
    refused = {
        "a handle that no node has": driver.cuGraphInstantiate(unused, 0),
        "a copy": driver.cuGraphClone(switch),
        "a node of another graph": driver.cuGraphAddChildGraphNode(unused, [], 0, switch),
    }
    wrong = {what: code for what, (code, *_) in refused.items() if code.value == 0}
    assert not wrong, wrong

    gives(looping, 5, 0, 5, 0, 100)
    gives(looping, 5, 5, 0, 0, 100, choice=1)
    gives(switching, 0, 0, 10, 0, 0, choice=1)

    def verify():
        gives(looping, 5, 0, 5, 0, 100)
        gives(looping, 5, 5, 0, 0, 100, choice=1)
        gives(switching, 0, 10, 0, 0, 0)
        gives(switching, 0, 0, 0, 33, 0, choice=2)
        gives(switching, 0, 0, 0, 0, 0, choice=3)
        # A node of a body, changed in the instance; then anew from the graph.
        call("cuGraphExecKernelNodeSetParams", looping, adds, kernel(add, words, 2, 7))
        gives(looping, 5, 35, 0, 0, 100, choice=1)
        call("cuGraphExecDestroy", looping)
        call("cuGraphKernelNodeSetParams", counts, kernel(count, words, again, 3))
        gives(call("cuGraphInstantiate", loop, 0), 3, 0, 3, 0, 100)
        call("cuGraphExecDestroy", switching)
        for graph in (loop, switch, unused):
            call("cuGraphDestroy", graph)

    return verify


main(setup)
