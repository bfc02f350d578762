"""Nodes with graphs, conditions or memory, added by hand to a capture under way: bodies are captured meanwhile, as `torch.cond` does."""

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
extern "C" __global__ void move(unsigned *to, const unsigned *from) { *to = *from; }
"""
IF, WHILE = range(2)
KERNEL, CHILD, TAKES, GIVES_BACK, CONDITIONAL = 0, 4, 10, 11, 13
MODE = driver.CUstreamCaptureMode(0)


def setup():
    context = open_device()
    code = conditional_module(SOURCE)
    count, choose, add, move = (call("cuModuleGetFunction", code, name) for name in (b"count", b"choose", b"add", b"move"))
    stream, of_body, of_inner = (call("cuStreamCreate", 1) for _ in range(3))
    words = int(upload(np.zeros(8, np.uint32)))
    kept = []

    def packed(*arguments):
        kept.append(pack(arguments))
        return kept[-1][1].ctypes.data

    def launch(on, function, *arguments):
        call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, on, packed(*arguments), 0)

    def kernel(function, *arguments):
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func, node.gridDimX, node.gridDimY, node.gridDimZ = function, 1, 1, 1
        node.blockDimX, node.blockDimY, node.blockDimZ, node.kernelParams = 1, 1, 1, packed(*arguments)
        return node

    def under_way(on):
        """The graph of the capture, and the nodes that the next one comes after."""
        _, _, graph, nodes, _, number = call("cuStreamGetCaptureInfo", on)
        return graph, [] if not number else list(nodes[:number])

    def go_on_behind(on, node):
        call("cuStreamUpdateCaptureDependencies", on, [node], [driver.CUgraphEdgeData()], 1, 1)

    def condition(on, default=None):
        graph, _ = under_way(on)
        return np.uint64(int(call("cuGraphConditionalHandleCreate", graph, context, default or 0, int(default is not None))))

    def conditional(on, condition, kind, size):
        """A node behind what the stream has, and its bodies; the stream goes on behind it."""
        graph, after = under_way(on)
        wanted = driver.CUgraphNodeParams()
        wanted.type = driver.CUgraphNodeType(CONDITIONAL)
        wanted.conditional.handle, wanted.conditional.size = int(condition), size
        wanted.conditional.type, wanted.conditional.ctx = driver.CUgraphConditionalNodeType(kind), context
        edges = [driver.CUgraphEdgeData() for _ in after] or None
        go_on_behind(on, call("cuGraphAddNode", graph, after, edges, len(after), wanted))
        place = ctypes.c_uint64.from_address(wanted.conditional.getPtr() + 16).value
        return [driver.CUgraph(body) for body in (ctypes.c_uint64 * size).from_address(place)]

    def begin_in(on, body):
        call("cuStreamBeginCaptureToGraph", on, body, None, None, 0, MODE)

    def nodes_of(graph):
        nodes, number = call("cuGraphGetNodes", graph, 16)
        return list(nodes[:number])

    def kinds(graph):
        return [int(call("cuGraphNodeGetType", node)) for node in nodes_of(graph)]

    def gives(exec_, *expected, choice=0):
        call("cuMemsetD32Async", words, 0, 8, stream)
        call("cuMemsetD32Async", words + 4, choice, 1, stream)
        call("cuGraphLaunch", exec_, stream)
        call("cuStreamSynchronize", stream)
        found = download(words, 6, np.uint32).tolist()
        assert found == [expected[0], choice, *expected[1:]], (found, expected, choice)

    # A choice of two: a body that is captured, and one that is built.
    call("cuStreamBeginCapture", stream, MODE)
    either = condition(stream)
    launch(stream, choose, words, either)
    yes, no = conditional(stream, either, IF, 2)
    begin_in(of_body, yes)
    launch(of_body, add, words, 2, 10)
    launch(of_body, add, words, 2, 1)
    call("cuStreamEndCapture", of_body)
    call("cuGraphAddKernelNode", no, [], 0, kernel(add, words, 3, 20))
    launch(stream, add, words, 5, 100)
    choice = call("cuStreamEndCapture", stream)
    assert kinds(choice) == [KERNEL, CONDITIONAL, KERNEL] and kinds(yes) == [KERNEL, KERNEL] and kinds(no) == [KERNEL]
    choosing = call("cuGraphInstantiate", choice, 0)

    # A loop, and a choice within its body, both captured while the loop is.
    call("cuStreamBeginCapture", stream, MODE)
    again = condition(stream, 1)
    (body,) = conditional(stream, again, WHILE, 1)
    begin_in(of_body, body)
    launch(of_body, count, words, again, 5)
    inner = condition(of_body)
    launch(of_body, choose, words, inner)
    (deepest,) = conditional(of_body, inner, IF, 1)
    begin_in(of_inner, deepest)
    launch(of_inner, add, words, 2, 1)
    call("cuStreamEndCapture", of_inner)
    launch(of_body, add, words, 3, 2)
    call("cuStreamEndCapture", of_body)
    launch(stream, add, words, 5, 100)
    loop = call("cuStreamEndCapture", stream)
    assert kinds(loop) == [CONDITIONAL, KERNEL] and kinds(body) == [KERNEL, KERNEL, CONDITIONAL, KERNEL] and kinds(deepest) == [KERNEL]
    looping = call("cuGraphInstantiate", loop, 0)

    # A graph as it was when it was added.
    child = call("cuGraphCreate", 0)
    inside = call("cuGraphAddKernelNode", child, [], 0, kernel(add, words, 2, 7))
    call("cuStreamBeginCapture", stream, MODE)
    launch(stream, add, words, 2, 1)
    graph, after = under_way(stream)
    node = call("cuGraphAddChildGraphNode", graph, after, len(after), child)
    go_on_behind(stream, node)
    call("cuGraphKernelNodeSetParams", inside, kernel(add, words, 2, 1000))
    launch(stream, move, words + 12, words + 8)
    with_child = call("cuStreamEndCapture", stream)
    assert kinds(with_child) == [KERNEL, CHILD, KERNEL] and kinds(call("cuGraphChildGraphNodeGetGraph", node)) == [KERNEL]
    having = call("cuGraphInstantiate", with_child, 0)

    # Memory that the graph takes and gives back.
    call("cuStreamBeginCapture", stream, MODE)
    launch(stream, add, words, 4, 3)
    graph, after = under_way(stream)
    wanted = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    wanted.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.poolProps.location.id, wanted.bytesize = 0, 4096
    go_on_behind(stream, call("cuGraphAddMemAllocNode", graph, after, len(after), wanted))
    scratch = int(wanted.dptr)
    launch(stream, move, scratch, words + 16)
    launch(stream, add, scratch, 0, 1)
    launch(stream, move, words + 8, scratch)
    _, after = under_way(stream)
    go_on_behind(stream, call("cuGraphAddMemFreeNode", graph, after, len(after), scratch))
    launch(stream, add, words, 5, 1)
    with_memory = call("cuStreamEndCapture", stream)
    assert kinds(with_memory) == [KERNEL, TAKES, KERNEL, KERNEL, KERNEL, GIVES_BACK, KERNEL]
    taking = call("cuGraphInstantiate", with_memory, 0)

    # A capture that comes to nothing takes the graphs in its nodes with it.
    call("cuStreamBeginCapture", stream, MODE)
    lost = condition(stream)
    (body,) = conditional(stream, lost, IF, 1)
    begin_in(of_body, body)
    launch(of_body, add, words, 2, 10)
    call("cuStreamEndCapture", of_body)
    assert driver.cuStreamSynchronize(stream)[0].value != 0
    assert driver.cuStreamEndCapture(stream)[0].value != 0

    gives(choosing, 0, 11, 0, 0, 100, choice=1)
    gives(looping, 5, 0, 10, 0, 100)
    gives(having, 0, 8, 8, 0, 0)
    gives(taking, 0, 4, 0, 3, 1)

    def verify():
        gives(choosing, 0, 11, 0, 0, 100, choice=1)
        gives(choosing, 0, 0, 20, 0, 100)
        gives(looping, 5, 5, 10, 0, 100, choice=1)
        gives(having, 0, 8, 8, 0, 0)
        gives(taking, 0, 4, 0, 3, 1)
        # Nodes of bodies, changed in an instance and in their graph.
        call("cuGraphExecKernelNodeSetParams", choosing, nodes_of(yes)[1], kernel(add, words, 2, 2))
        gives(choosing, 0, 12, 0, 0, 100, choice=1)
        call("cuGraphExecDestroy", looping)
        call("cuGraphKernelNodeSetParams", nodes_of(deepest)[0], kernel(add, words, 2, 3))
        gives(call("cuGraphInstantiate", loop, 0), 5, 15, 10, 0, 100, choice=1)
        # What is captured from now on goes behind them.
        last = nodes_of(with_child)[-1]
        call("cuStreamBeginCaptureToGraph", stream, with_child, [last], [driver.CUgraphEdgeData()], 1, MODE)
        later = condition(stream)
        launch(stream, choose, words, later)
        (body,) = conditional(stream, later, IF, 1)
        begin_in(of_body, body)
        launch(of_body, add, words, 4, 9)
        call("cuStreamEndCapture", of_body)
        call("cuStreamEndCapture", stream)
        # A graph with conditions has one instance at a time.
        call("cuGraphExecDestroy", having)
        gives(call("cuGraphInstantiate", with_child, 0), 0, 8, 8, 9, 0, choice=1)
        for graph in (choice, loop, with_child, with_memory, child):
            call("cuGraphDestroy", graph)

    return verify


main(setup)
