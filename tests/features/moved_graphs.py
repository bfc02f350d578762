"""A graph that becomes a part of another one (as XLA's command buffers do), and whose nodes are changed in the instance."""

import ctypes

import numpy as np
from gpu import adder, call, download, driver, main

CHILD, MOVE = 4, 1


def add_moved(parent, child):
    """cuGraphAddNode of a child whose owner is the parent from now on; the code, and the node."""
    parameters = (ctypes.c_uint64 * 32)()
    parameters[0] = CHILD
    parameters[2] = int(child)
    parameters[3] = MOVE
    node = ctypes.c_void_p()
    add = ctypes.CDLL("libcuda.so.1").cuGraphAddNode
    code = add(ctypes.byref(node), ctypes.c_void_p(int(parent)), None, ctypes.c_size_t(0), parameters)
    return code, driver.CUgraphNode(node.value or 0)


def box(to, source, n):
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.dstDevice = source, to
    copy.WidthInBytes, copy.Height, copy.Depth = 4 * n, 1, 1
    return copy


def setup():
    module, n, a, b = adder()
    stream = call("cuStreamCreate", 1)
    context = call("cuCtxGetCurrent")
    call("cuMemcpyHtoD", a, np.arange(n, dtype=np.float32), 4 * n)
    call("cuMemcpyHtoD", b, np.full(n, 50, np.float32), 4 * n)
    third = call("cuMemAlloc", 4 * n)

    def one_of(value):
        """A graph of a captured kernel."""
        call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
        module.add(n // 128, 128, third, value, n, stream=stream)
        return call("cuStreamEndCapture", stream)

    innermost = call("cuGraphCreate", 0)
    copied = call("cuGraphAddMemcpyNode", innermost, None, 0, box(third, a, n), context)
    added = call("cuGraphAddChildGraphNode", innermost, [copied], 1, one_of(1.0))
    middle, outer = call("cuGraphCreate", 0), call("cuGraphCreate", 0)
    code, _ = add_moved(middle, innermost)
    assert code == 0
    code, node = add_moved(outer, middle)
    assert code == 0
    assert int(call("cuGraphChildGraphNodeGetGraph", node)) == int(middle)
    # It has an owner.
    assert driver.cuGraphDestroy(middle)[0] != driver.CUresult.CUDA_SUCCESS
    assert add_moved(call("cuGraphCreate", 0), middle)[0] != 0
    instance = call("cuGraphInstantiate", outer, 0)

    # A graph that takes memory, and leaves it to the program, is moved and not copied.
    wanted = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    wanted.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.bytesize = 4 * n
    taking, taker = call("cuGraphCreate", 0), call("cuGraphCreate", 0)
    node = call("cuGraphAddMemAllocNode", taking, None, 0, wanted)
    taken = int(call("cuGraphMemAllocNodeGetParams", node).dptr)
    call("cuGraphAddMemcpyNode", taking, [node], 1, box(taken, b, n), context)
    assert driver.cuGraphAddChildGraphNode(taker, None, 0, taking)[0] != driver.CUresult.CUDA_SUCCESS
    code, node = add_moved(taker, taking)
    assert code == 0
    takes = call("cuGraphInstantiate", taker, 0)
    refused = {
        "a second instance": driver.cuGraphInstantiate(taker, 0)[0],
        "a copy": driver.cuGraphClone(taker)[0],
        "an instance of the part": driver.cuGraphInstantiate(taking, 0)[0],
        "memory beside what it has": driver.cuGraphAddMemAllocNode(taking, None, 0, wanted)[0],
    }
    assert driver.CUresult.CUDA_SUCCESS not in refused.values(), refused

    def take(value):
        call("cuMemsetD32", b, int(np.float32(value).view(np.uint32)), n)
        # Nothing else orders it before work of a stream that does not wait for the default one.
        call("cuStreamSynchronize", 0)
        call("cuGraphLaunch", takes, stream)
        call("cuStreamSynchronize", stream)
        assert np.all(download(taken, n) == value)

    take(50.0)

    def launch(expected):
        call("cuGraphLaunch", instance, stream)
        call("cuStreamSynchronize", stream)
        assert np.array_equal(download(third, n), expected), download(third, 4)

    numbers = np.arange(n, dtype=np.float32)
    launch(numbers + 1)
    call("cuGraphExecMemcpyNodeSetParams", instance, copied, box(third, b, n), context)
    launch(np.full(n, 51, np.float32))

    def verify():
        launch(np.full(n, 51, np.float32))
        call("cuGraphExecChildGraphNodeSetParams", instance, added, one_of(3.0))
        launch(np.full(n, 53, np.float32))
        call("cuGraphExecMemcpyNodeSetParams", instance, copied, box(third, a, n), context)
        launch(numbers + 3)
        fresh = call("cuGraphInstantiate", outer, 0)
        call("cuGraphLaunch", fresh, stream)
        call("cuStreamSynchronize", stream)
        assert np.array_equal(download(third, n), numbers + 1)
        call("cuGraphDestroy", outer)
        launch(numbers + 3)
        assert np.all(download(taken, n) == 50), "what a launch left is there"
        call("cuMemFree", taken)
        take(60.0)
        call("cuMemFree", taken)

    return verify


main(setup)
