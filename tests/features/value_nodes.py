"""Nodes that write values and wait for them, one after the other, and such nodes changed."""

import numpy as np
from gpu import call, download, driver, main, open_device, upload

Kind = driver.CUstreamBatchMemOpType


def operation(kind, address, value, flags=0):
    one = driver.CUstreamBatchMemOpParams()
    one.operation = kind
    part = one.waitValue if "WAIT" in kind.name else one.writeValue
    part.operation, part.address, part.flags = kind, address, flags
    if kind.name.endswith("64"):
        part.value64 = value
    else:
        part.value = value
    return one


def setup():
    context = open_device()
    stream = call("cuStreamCreate", 1)
    words = int(upload(np.zeros(8, np.uint32)))

    def batch(*operations):
        node = driver.CUDA_BATCH_MEM_OP_NODE_PARAMS()
        node.ctx, node.count, node.paramArray, node.flags = context, len(operations), list(operations), 0
        return node

    write, wait = Kind.CU_STREAM_MEM_OP_WRITE_VALUE_32, Kind.CU_STREAM_MEM_OP_WAIT_VALUE_32
    write64 = Kind.CU_STREAM_MEM_OP_WRITE_VALUE_64
    graph = call("cuGraphCreate", 0)
    first = call(
        "cuGraphAddBatchMemOpNode",
        graph,
        [],
        0,
        batch(operation(write, words, 5), operation(wait, words, 5, 1), operation(write64, words + 8, 1 << 40)),
    )
    call("cuGraphAddBatchMemOpNode", graph, [first], 1, batch(operation(write, words + 4, 6)))
    assert int(call("cuGraphNodeGetType", first)) == 12
    read = call("cuGraphBatchMemOpNodeGetParams", first)
    assert read.count == 3, read
    made = call("cuGraphInstantiate", graph, 0)
    changed = call("cuGraphInstantiate", graph, 0)
    other = batch(operation(write, words, 50), operation(wait, words, 50, 1), operation(write64, words + 8, 1 << 41))
    call("cuGraphExecBatchMemOpNodeSetParams", changed, first, other)

    def gives(exec_, *expected):
        call("cuMemsetD32Async", words, 0, 8, stream)
        call("cuGraphLaunch", exec_, stream)
        call("cuStreamSynchronize", stream)
        found = download(words, 4, np.uint32).tolist()
        assert found == list(expected), found

    gives(made, 5, 6, 0, 256)
    gives(changed, 50, 6, 0, 512)

    def verify():
        gives(made, 5, 6, 0, 256)
        gives(changed, 50, 6, 0, 512)
        call("cuGraphBatchMemOpNodeSetParams", first, batch(operation(write, words, 7)))
        gives(call("cuGraphInstantiate", graph, 0), 7, 6, 0, 0)

    return verify


main(setup)
