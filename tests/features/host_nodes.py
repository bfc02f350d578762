"""Host functions in graphs that were captured and built, in child graphs and after changes: each runs at every launch."""

import ctypes

import numpy as np
from gpu import adder, at, call, driver, main

seen, kept = [], []
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
note = CALLBACK(lambda value: seen.append(value))
ADDRESS = ctypes.cast(note, ctypes.c_void_p).value


def launch(stream, function, value):
    """`cuLaunchHostFunc`, past the bindings, whose wrapper of a function can be called once."""
    address = ctypes.cast(function, ctypes.c_void_p)
    code = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc(ctypes.c_void_p(int(stream)), address, ctypes.c_void_p(value))
    assert code == 0, code


def host(value):
    node = driver.CUDA_HOST_NODE_PARAMS()
    node.fn, node.userData = driver.CUhostFn(ADDRESS), value
    return node


def setup():
    module, n, a, _ = adder()
    stream, mode = call("cuStreamCreate", 1), driver.CUstreamCaptureMode(0)
    pinned = call("cuMemHostAlloc", 4 * n, 0)
    found = at(pinned, n)
    # What a function sees has come to pass before it, and nothing of what comes after it.
    look = CALLBACK(lambda value: seen.append(float(found[0])))
    kept.append(look)

    call("cuStreamBeginCapture", stream, mode)
    module.add(n // 128, 128, a, 1.0, n, stream=stream)
    call("cuMemcpyDtoHAsync", pinned, a, 4 * n, stream)
    launch(stream, look, 0)
    module.add(n // 128, 128, a, 1.0, n, stream=stream)
    call("cuMemcpyDtoHAsync", pinned, a, 4 * n, stream)
    launch(stream, look, 0)
    graph = call("cuStreamEndCapture", stream)
    captured = call("cuGraphInstantiate", graph, 0)
    call("cuGraphDestroy", graph)

    built = call("cuGraphCreate", 0)
    first = call("cuGraphAddHostNode", built, [], 0, host(100))
    second = call("cuGraphAddHostNode", built, [first], 1, host(200))
    outer = call("cuGraphCreate", 0)
    child = call("cuGraphAddChildGraphNode", outer, [], 0, built)
    call("cuGraphAddHostNode", outer, [child], 1, host(300))
    made = call("cuGraphInstantiate", outer, 0)
    alone = call("cuGraphInstantiate", built, 0)
    call("cuGraphExecHostNodeSetParams", alone, first, host(101))
    call("cuGraphHostNodeSetParams", second, host(201))
    read = call("cuGraphHostNodeGetParams", second)
    assert int(read.userData) == 201 and int(read.fn) == ADDRESS
    assert int(call("cuGraphNodeGetType", second)) == 3

    def gives(exec_, *expected):
        seen.clear()
        call("cuGraphLaunch", exec_, stream)
        call("cuStreamSynchronize", stream)
        assert seen == list(expected), seen

    gives(captured, 1, 2)
    gives(made, 100, 200, 300)
    gives(alone, 101, 200)
    assert driver.cuGraphAddHostNode(built, [], 0, driver.CUDA_HOST_NODE_PARAMS())[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE

    def verify():
        gives(captured, 3, 4)
        gives(made, 100, 200, 300)
        gives(alone, 101, 200)
        again = call("cuGraphInstantiate", built, 0)
        gives(again, 100, 201)
        for exec_ in (again, alone, made):
            call("cuGraphExecDestroy", exec_)
        gives(captured, 5, 6)
        assert np.all(found == 6)

    return verify


main(setup)
