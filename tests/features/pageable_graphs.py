"""Copies of pageable memory in graphs: bytes are read and written at each launch, in the graph's order."""

import numpy as np
from gpu import adder, call, driver, main


def box(to, from_, width, height=1, up=True, pitch=0):
    """A copy of rows that are packed on the GPU."""
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType = driver.CUmemorytype(1 if up else 2)
    copy.dstMemoryType = driver.CUmemorytype(2 if up else 1)
    if up:
        copy.srcHost, copy.dstDevice, copy.srcPitch, copy.dstPitch = from_, to, pitch, width
    else:
        copy.dstHost, copy.srcDevice, copy.dstPitch, copy.srcPitch = to, from_, pitch, width
    copy.WidthInBytes, copy.Height, copy.Depth = width, height, 1
    return copy


def setup():
    module, n, a, b = adder()
    context = call("cuCtxGetCurrent")
    stream, other = call("cuStreamCreate", 1), call("cuStreamCreate", 1)
    done = call("cuEventCreate", 2)
    source, target = np.zeros(n, np.float32), np.zeros(n, np.float32)

    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
    call("cuMemcpyHtoDAsync", a, source.ctypes.data, source.nbytes, stream)
    module.add(n // 128, 128, a, 1.0, n, stream=stream)
    call("cuMemcpyDtoHAsync", target.ctypes.data, a, target.nbytes, stream)
    graph = call("cuStreamEndCapture", stream)
    nodes, count = call("cuGraphGetNodes", graph, 8)
    assert count == 3 and [int(call("cuGraphNodeGetType", node)) for node in nodes[:3]] == [1, 0, 1]
    captured = call("cuGraphInstantiate", graph, 0)
    assert not target.any(), "nothing is copied before a launch"
    read = call("cuGraphMemcpyNodeGetParams", nodes[2])
    assert int(read.dstHost) == target.ctypes.data and read.WidthInBytes == target.nbytes

    # Every second row of four, by a graph that was built.
    rows = np.zeros((8, n // 8), np.float32)
    packed = np.zeros((4, n // 8), np.float32)
    row = rows.strides[0]
    built = call("cuGraphCreate", 0)
    up = call("cuGraphAddMemcpyNode", built, [], 0, box(b, rows.ctypes.data, row, 4, pitch=2 * row), context)
    call("cuGraphAddMemcpyNode", built, [up], 1, box(packed.ctypes.data, b, row, 4, up=False, pitch=row), context)
    made = call("cuGraphInstantiate", built, 0)

    def gives(value):
        source[:] = value
        call("cuGraphLaunch", captured, stream)
        # Whatever waits for the graph finds the bytes there.
        call("cuEventRecord", done, stream)
        call("cuStreamWaitEvent", other, done, 0)
        call("cuStreamSynchronize", other)
        assert np.all(target == value + 1), target

    def gathers(value):
        rows[:] = np.arange(8, dtype=np.float32)[:, None] + value
        call("cuGraphLaunch", made, stream)
        call("cuCtxSynchronize")
        assert np.all(packed == np.array([0, 2, 4, 6], np.float32)[:, None] + value), packed

    gives(4)
    gathers(10)
    # Another source, in the instance alone.
    source_2 = np.full(n, 50, np.float32)
    call("cuGraphExecMemcpyNodeSetParams", captured, nodes[0], box(a, source_2.ctypes.data, source_2.nbytes), context)
    call("cuGraphLaunch", captured, stream)
    call("cuStreamSynchronize", stream)
    assert np.all(target == 51)
    assert driver.cuMemcpyHtoD(a, source.ctypes.data, 4)[0].value == 0

    def verify():
        source_2[:] = 60
        for _ in range(3):
            call("cuGraphLaunch", captured, stream)
        call("cuStreamSynchronize", stream)
        assert np.all(target == 61)
        gathers(30)
        call("cuGraphExecDestroy", captured)
        again = call("cuGraphInstantiate", graph, 0)
        source[:] = 7
        call("cuGraphLaunch", again, stream)
        call("cuStreamSynchronize", stream)
        assert np.all(target == 8)
        for handle in (graph, built):
            call("cuGraphDestroy", handle)
        call("cuGraphLaunch", again, stream)
        call("cuStreamSynchronize", stream)
        for handle in (again, made):
            call("cuGraphExecDestroy", handle)

    return verify


main(setup)
