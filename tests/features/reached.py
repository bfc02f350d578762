"""Memory that kernels come to without being given its address: by tables that were brought in every way there is."""

import ctypes

import numpy as np
from gpu import Module, at, call, download, main, open_device

SOURCE = """
struct Both { unsigned long long *table; unsigned long long own; };
// Writes to the first words of each buffer of a table.
extern "C" __global__ void by_table(unsigned long long *table, int count, int value) {
    for (int n = threadIdx.x; n < count; n += blockDim.x) {
        ((int *)table[n])[0] = value + n;
        ((int *)table[n])[(2 << 20) / 4] = value + n;
    }
}
// Follows a list: each node begins with the address of the next.
extern "C" __global__ void by_list(unsigned long long *node, int value) {
    for (; node; node = (unsigned long long *)*node) ((int *)node)[2] = value++;
}
extern "C" __global__ void by_structure(Both both, int value) {
    *(int *)both.own = value;
    *(int *)both.table[0] = value + 1;
}
"""
SIZE = 3 << 20
COUNT = 4


def buffers(count=COUNT):
    return [int(call("cuMemAlloc", SIZE)) for _ in range(count)]


def first(buffer, offset=0):
    return int(download(buffer + offset, 1, np.int32)[0])


def setup():
    open_device()
    module = Module(SOURCE)
    named = int(call("cuMemAlloc", SIZE))
    expected = {}

    def write(table, found, value):
        module.by_table(1, 32, np.uint64(table), len(found), value)
        for number, buffer in enumerate(found):
            expected[buffer, 0] = expected[buffer, 2 << 20] = value + number

    # Pageable memory.
    found = buffers()
    words = np.array(found, np.uint64)
    call("cuMemcpyHtoD", named, words.ctypes.data, words.nbytes)
    write(named, found, 100)

    # A large piece of it, at an odd place.
    found = buffers()
    large = np.zeros(200_000, np.uint64)
    large[150_001 : 150_001 + COUNT] = found
    call("cuMemcpyHtoD", named + 4096 + 8, large.ctypes.data, large.nbytes)
    write(named + 4096 + 8 + 150_001 * 8, found, 200)

    # Pinned memory, copied.
    pinned = call("cuMemAllocHost", 4096)
    found = buffers()
    at(pinned, COUNT, np.uint64)[:] = found
    call("cuMemcpyHtoDAsync", named, pinned, COUNT * 8, 0)
    write(named, found, 300)

    # A word that the stream writes.
    (found,) = buffers(1)
    call("cuStreamWriteValue64", 0, named, found, 0)
    write(named, [found], 400)

    # Pinned memory that a kernel reads itself.
    call("cuCtxSynchronize")
    found = buffers()
    at(pinned, COUNT, np.uint64)[:] = found
    write(int(pinned), found, 500)

    # A list, each node of which was brought before the next one was used.
    nodes = buffers()
    for node, following in zip(nodes, [*nodes[1:], 0], strict=True):
        call("cuMemcpyHtoD", node, ctypes.c_uint64(following), 8)
    module.by_list(1, 1, np.uint64(nodes[0]), 600)
    for number, node in enumerate(nodes):
        expected[node, 8] = 600 + number

    # A structure by value, and what its table leads to.
    own, further = buffers(2)
    call("cuMemcpyHtoD", named + 64, ctypes.c_uint64(further), 8)
    function = module.function("by_structure")
    structure, value = np.array([named + 64, own], np.uint64), np.array([700], np.int32)
    parameters = np.array([structure.ctypes.data, value.ctypes.data], np.uint64)
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, parameters.ctypes.data, 0)
    expected[own, 0], expected[further, 0] = 700, 701
    call("cuCtxSynchronize")

    def verify():
        assert {place: first(*place) for place in expected} == expected

    return verify


main(setup)
