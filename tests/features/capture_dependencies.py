"""What captured nodes come after is read and told while a capture is under way; captures go behind nodes that are there."""

import ctypes

import numpy as np
from gpu import adder, call, download, driver, main

Result = driver.CUresult


def setup():
    module, n, a, b = adder()
    stream, mode = call("cuStreamCreate", 1), driver.CUstreamCaptureMode(0)

    def under_way():
        """The graph of the capture, and the nodes that the next one comes after."""
        _, _, graph, nodes, _, count = call("cuStreamGetCaptureInfo", stream)
        return graph, [] if not count else list(nodes[:count])

    call("cuStreamBeginCapture", stream, mode)
    assert under_way()[1] == []
    module.add(n // 128, 128, a, 1.0, n, stream=stream)
    of, (first,) = under_way()
    # As many edges as nodes, each a whole one.
    status, nodes, edges = ctypes.c_int(), ctypes.POINTER(ctypes.c_uint64)(), ctypes.POINTER(ctypes.c_uint64)()
    count = ctypes.c_size_t()
    ask = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v3
    out = [ctypes.byref(place) for place in (nodes, edges, count)]
    assert ask(ctypes.c_void_p(int(stream)), ctypes.byref(status), None, None, *out) == 0
    assert count.value == 1 and edges[0] == 0
    module.add(n // 128, 128, a, 2.0, n, stream=stream)
    _, (second,) = under_way()
    assert int(first) != int(second)
    # Back to the first one: what follows is beside the second.
    call("cuStreamUpdateCaptureDependencies", stream, [first], [driver.CUgraphEdgeData()], 1, 1)
    call("cuMemcpyDtoDAsync", b, a, 4, stream)
    _, (third,) = under_way()
    call("cuStreamUpdateCaptureDependencies", stream, [second], [driver.CUgraphEdgeData()], 1, 0)
    # What there is by now is looked at before the capture ends, as by programs that join all that they have forked.
    nodes, found = call("cuGraphGetNodes", of, 16)
    assert [int(node) for node in nodes[:found]] == [int(node) for node in (first, second, third)]
    assert [int(call("cuGraphNodeGetType", node)) for node in nodes[:found]] == [0, 0, 1]
    behind = [call("cuGraphNodeGetDependentNodes", node, 4) for node in nodes[:found]]
    behind = [sorted(int(node) for node in found[: answer[-1]]) for found, *answer in behind]
    assert behind == [sorted([int(second), int(third)]), [], []]
    # A node added by hand, behind which the capture goes on.
    added = call("cuGraphAddEmptyNode", of, [second, third], 2)
    call("cuStreamUpdateCaptureDependencies", stream, [added], [driver.CUgraphEdgeData()], 1, 1)
    module.add(n // 128, 128, b, 3.0, n, stream=stream)
    _, (fourth,) = under_way()
    graph = call("cuStreamEndCapture", stream)
    assert int(graph) == int(of)

    def after(node):
        nodes, *_, count = call("cuGraphNodeGetDependencies", node, 8)
        return sorted(int(node) for node in nodes[:count])

    assert after(first) == [] and after(second) == [int(first)] and after(third) == [int(first)]
    assert after(fourth) == [int(added)] and after(added) == sorted([int(second), int(third)])
    assert int(call("cuGraphNodeGetType", added)) == 5 and int(call("cuGraphNodeGetType", fourth)) == 0
    made = call("cuGraphInstantiate", graph, 0)
    assert driver.cuStreamUpdateCaptureDependencies(stream, None, None, 0, 0)[0] == Result.CUDA_ERROR_ILLEGAL_STATE

    def verify():
        call("cuGraphLaunch", made, stream)
        call("cuStreamSynchronize", stream)
        assert np.all(download(a, n) == 3) and np.all(download(b, n)[1:] == 3)
        # More behind the last one.
        call("cuStreamBeginCaptureToGraph", stream, graph, [fourth], [driver.CUgraphEdgeData()], 1, mode)
        module.add(n // 128, 128, b, 100.0, n, stream=stream)
        call("cuStreamEndCapture", stream)
        assert call("cuGraphGetNodes", graph, 9)[1] == 6
        call("cuGraphLaunch", call("cuGraphInstantiate", graph, 0), stream)
        call("cuStreamSynchronize", stream)
        assert np.all(download(b, n)[1:] == 106), download(b, 4)

    return verify


main(setup)
