"""A captured graph, with a fork and a join over events, and an explicit one, with a programmatic edge, can still be launched."""

import numpy as np
from gpu import adder, call, download, driver, main, pack


def setup():
    module, n, a, b = adder()
    one, two = call("cuStreamCreate", 1), call("cuStreamCreate", 1)
    fork, join = call("cuEventCreate", 2), call("cuEventCreate", 2)
    call("cuStreamBeginCapture", one, driver.CUstreamCaptureMode(0))
    module.add(n // 128, 128, a, 1.0, n, stream=one)
    call("cuEventRecord", fork, one)
    call("cuStreamWaitEvent", two, fork, 0)
    module.add(n // 128, 128, b, 2.0, n, stream=two)
    call("cuEventRecord", join, two)
    call("cuStreamWaitEvent", one, join, 0)
    call("cuMemcpyDtoDAsync", a, b, 4 * (n // 2), one)
    graph = call("cuStreamEndCapture", one)
    captured = call("cuGraphInstantiate", graph, 0)
    call("cuGraphLaunch", captured, one)

    explicit = call("cuGraphCreate", 0)
    slots, pointers = pack((b, 0.5, n))
    node = driver.CUDA_KERNEL_NODE_PARAMS()
    node.func, node.gridDimX, node.gridDimY, node.gridDimZ = module.function("add"), n // 128, 1, 1
    node.blockDimX, node.blockDimY, node.blockDimZ, node.kernelParams = 128, 1, 1, pointers.ctypes.data
    first = call("cuGraphAddKernelNode", explicit, [], 0, node)
    edge = driver.CUgraphEdgeData()
    edge.from_port, edge.type = 1, driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    second = driver.CUgraphNodeParams()
    second.type, kernel = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL, second.kernel
    for field in ("func", "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "kernelParams"):
        setattr(kernel, field, getattr(node, field))
    call("cuGraphAddNode", explicit, [first], [edge], 1, second)
    made = call("cuGraphInstantiate", explicit, 0)
    call("cuStreamSynchronize", one)

    def verify():
        call("cuGraphLaunch", captured, one)
        call("cuGraphLaunch", captured, one)
        call("cuGraphLaunch", made, one)
        call("cuStreamSynchronize", one)
        values = download(a, n)
        assert np.all(values[: n // 2] == 6) and np.all(values[n // 2 :] == 3), values
        assert np.all(download(b, n) == 7)
        nodes = call("cuGraphGetNodes", graph, 10)
        assert nodes[1] == 3, nodes
        for exec_ in (captured, made):
            call("cuGraphExecDestroy", exec_)

    return verify


main(setup)
