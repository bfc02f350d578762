"""Nodes that record events and wait for them, captured (external) and built, and changed."""

import numpy as np
from gpu import adder, call, download, driver, main

Result = driver.CUresult


def setup():
    module, n, a, b = adder()
    stream, other = call("cuStreamCreate", 1), call("cuStreamCreate", 1)
    first, second, gate = (call("cuEventCreate", 0) for _ in range(3))

    graph = call("cuGraphCreate", 0)
    waits = call("cuGraphAddEventWaitNode", graph, [], 0, gate)
    records = call("cuGraphAddEventRecordNode", graph, [waits], 1, first)
    assert [int(call("cuGraphNodeGetType", node)) for node in (waits, records)] == [6, 7]
    assert int(call("cuGraphEventRecordNodeGetEvent", records)) == int(first)
    assert int(call("cuGraphEventWaitNodeGetEvent", waits)) == int(gate)
    assert driver.cuGraphEventWaitNodeGetEvent(records)[0] == Result.CUDA_ERROR_INVALID_VALUE
    made = call("cuGraphInstantiate", graph, 0)
    call("cuGraphExecEventRecordNodeSetEvent", made, records, second)

    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
    module.add(n // 128, 128, a, 1.0, n, stream=stream)
    call("cuEventRecordWithFlags", first, stream, 1)
    module.add(n // 128, 128, a, 1.0, n, stream=stream)
    captured_graph = call("cuStreamEndCapture", stream)
    nodes, count = call("cuGraphGetNodes", captured_graph, 3)
    assert count == 3 and int(call("cuGraphEventRecordNodeGetEvent", nodes[1])) == int(first)
    captured = call("cuGraphInstantiate", captured_graph, 0)

    def gives(event, value):
        """What waits for the event finds the first half of the captured graph done."""
        call("cuGraphLaunch", captured, stream)
        call("cuStreamWaitEvent", other, event, 0)
        call("cuMemcpyDtoDAsync", b, a, 4 * n, other)
        call("cuStreamSynchronize", other)
        assert np.all(download(b, n) >= value - 1)
        call("cuStreamSynchronize", stream)
        assert np.all(download(a, n) == value)

    gives(first, 2)
    # What a graph waits for is behind work of another stream.
    module.add(n // 128, 128, a, 5.0, n, stream=other)
    call("cuEventRecord", gate, other)
    call("cuGraphLaunch", made, stream)
    call("cuEventSynchronize", second)
    assert np.all(download(a, n) == 7)

    def verify():
        gives(first, 9)
        module.add(n // 128, 128, a, 5.0, n, stream=other)
        call("cuEventRecord", gate, other)
        call("cuGraphLaunch", made, stream)
        call("cuEventSynchronize", second)
        assert np.all(download(a, n) == 14)
        call("cuGraphEventRecordNodeSetEvent", records, second)
        assert int(call("cuGraphEventRecordNodeGetEvent", records)) == int(second)
        call("cuGraphExecEventRecordNodeSetEvent", captured, nodes[1], second)
        call("cuGraphLaunch", captured, stream)
        call("cuEventSynchronize", second)
        assert np.all(download(a, n) >= 15)
        call("cuStreamSynchronize", stream)
        for exec_ in (made, captured):
            call("cuGraphExecDestroy", exec_)

    return verify


main(setup)
