"""Constants that the program writes: every kernel reads what was last written, launched by itself or by a graph made before."""

import numpy as np
from cuda.bindings import driver
from gpu import Module, call, download, main, open_device, upload

SOURCE = """
__constant__ float factor = 3;
__constant__ int offsets[4] = {1, 2, 3, 4};
extern "C" __global__ void scale(float *out) { out[threadIdx.x] = threadIdx.x * factor; }
extern "C" __global__ void shift(float *out) { out[threadIdx.x] = threadIdx.x + offsets[threadIdx.x & 3]; }
"""
COUNT = 64


def captured(stream, work):
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    work()
    return call("cuStreamEndCapture", stream)


def setup():
    open_device()
    module, other = Module(SOURCE), Module(SOURCE)
    out, stream = upload(np.zeros(COUNT, np.float32)), call("cuStreamCreate", 1)
    ids = np.arange(COUNT, dtype=np.float32)

    def scaled(kernels=module):
        kernels.scale(1, COUNT, out, stream=stream)
        call("cuStreamSynchronize", stream)
        return download(out, COUNT)

    graph = captured(stream, lambda: module.scale(1, COUNT, out, stream=stream))
    launched = call("cuGraphInstantiate", graph, 0)

    def by_graph():
        call("cuGraphLaunch", launched, stream)
        call("cuStreamSynchronize", stream)
        return download(out, COUNT)

    def write(name, values):
        address, size = module.address(name)
        assert size == values.nbytes
        call("cuMemcpyHtoD", address, values.ctypes.data, size)
        # It may still be on its way, and the stream does not wait for the legacy one.
        call("cuStreamSynchronize", 0)

    def writing(value):
        """A graph that writes a constant between two kernels that read it."""
        values = upload(np.array([value], np.float32))

        def work():
            module.scale(1, COUNT, out, stream=stream)
            call("cuMemcpyDtoDAsync", before, out, 4 * COUNT, stream)
            call("cuMemcpyDtoDAsync", module.address("factor")[0], values, 4, stream)
            module.scale(1, COUNT, out, stream=stream)

        return call("cuGraphInstantiate", captured(stream, work), 0)

    def gives(exec_, first, second):
        call("cuGraphLaunch", exec_, stream)
        call("cuStreamSynchronize", stream)
        assert np.array_equal(download(before, COUNT), ids * first) and np.array_equal(download(out, COUNT), ids * second)

    before = upload(np.zeros(COUNT, np.float32))
    # Before anybody knows where they are.
    assert np.array_equal(scaled(), ids * 3) and np.array_equal(by_graph(), ids * 3)
    write("factor", np.array([5], np.float32))
    assert np.array_equal(scaled(), ids * 5) and np.array_equal(by_graph(), ids * 5)
    writes = writing(6)
    gives(writes, 5, 6)
    gives(writes, 6, 6)
    write("factor", np.array([5], np.float32))

    def verify():
        gives(writes, 5, 6)
        assert np.array_equal(scaled(), ids * 6)
        write("factor", np.array([5], np.float32))
        assert np.array_equal(by_graph(), ids * 5) and np.array_equal(scaled(), ids * 5)
        write("factor", np.array([7], np.float32))
        write("offsets", np.array([9, 8, 7, 6], np.int32))
        assert np.array_equal(by_graph(), ids * 7) and np.array_equal(scaled(), ids * 7)
        # First launched now.
        module.shift(1, COUNT, out, stream=stream)
        call("cuStreamSynchronize", stream)
        assert np.array_equal(download(out, COUNT), ids + np.array([9, 8, 7, 6])[np.arange(COUNT) & 3])
        # The same code, loaded twice, has constants of its own.
        assert np.array_equal(scaled(other), ids * 3)

    return verify


main(setup)
