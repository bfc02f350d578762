"""A capture into a graph that the program has made, more nodes behind it, and that graph as a node of another."""

import numpy as np
from gpu import adder, call, download, driver, main


def setup():
    module, n, a, b = adder()
    stream, mode = call("cuStreamCreate", 1), driver.CUstreamCaptureMode(0)

    graph = call("cuGraphCreate", 0)
    call("cuStreamBeginCaptureToGraph", stream, graph, None, None, 0, mode)
    # What the capture makes is lost; the driver takes the graph with it.
    call("cuMemcpyDtoDAsync", a, b, 4, stream)
    other = call("cuStreamCreate", 1)
    fork = call("cuEventCreate", 2)
    call("cuEventRecord", fork, stream)
    call("cuStreamWaitEvent", other, fork, 0)
    module.add(n // 128, 128, b, 100.0, n, stream=other)
    assert driver.cuStreamEndCapture(stream)[0] == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED

    graph = call("cuGraphCreate", 0)
    call("cuStreamBeginCaptureToGraph", stream, graph, None, None, 0, mode)
    module.add(n // 128, 128, a, 1.0, n, stream=stream)
    module.add(n // 128, 128, a, 2.0, n, stream=stream)
    assert int(call("cuStreamEndCapture", stream)) == int(graph)
    assert call("cuGraphGetNodes", graph, 10)[1] == 2
    # A capture into a graph that has nodes, behind the first of them.
    behind = call("cuGraphClone", graph)
    first = call("cuGraphNodeFindInClone", call("cuGraphGetNodes", graph, 2)[0][0], behind)
    call("cuStreamBeginCaptureToGraph", stream, behind, [first], [driver.CUgraphEdgeData()], 1, mode)
    module.add(n // 128, 128, b, 5.0, n, stream=stream)
    call("cuStreamEndCapture", stream)
    assert call("cuGraphGetNodes", behind, 10)[1] == 3
    assert call("cuGraphNodeGetDependentNodes", first, 10)[-1] == 2
    more = call("cuGraphInstantiate", behind, 0)

    parent = call("cuGraphCreate", 0)
    first = call("cuGraphAddChildGraphNode", parent, [], 0, graph)
    call("cuGraphAddChildGraphNode", parent, [first], 1, graph)
    grandparent = call("cuGraphCreate", 0)
    call("cuGraphAddChildGraphNode", grandparent, [], 0, parent)
    # Nodes have their children as they were.
    call("cuGraphDestroy", parent)
    made = call("cuGraphInstantiate", grandparent, 0)
    alone = call("cuGraphInstantiate", graph, 0)
    call("cuGraphLaunch", made, stream)
    call("cuStreamSynchronize", stream)
    assert np.all(download(a, n) == 6)

    def verify():
        call("cuGraphLaunch", made, stream)
        call("cuGraphLaunch", alone, stream)
        again = call("cuGraphInstantiate", grandparent, 0)
        call("cuGraphLaunch", again, stream)
        call("cuStreamSynchronize", stream)
        assert np.all(download(a, n) == 6 + 6 + 3 + 6), download(a, n)
        call("cuGraphLaunch", more, stream)
        call("cuStreamSynchronize", stream)
        assert np.all(download(a, n) == 24) and np.all(download(b, n) == 5)
        nodes, count = call("cuGraphGetNodes", grandparent, 10)
        assert count == 1 and call("cuGraphNodeGetType", nodes[0]) == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH
        for exec_ in (made, alone, again):
            call("cuGraphExecDestroy", exec_)

    return verify


main(setup)
