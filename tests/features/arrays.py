"""CUDA arrays of every shape keep their contents and descriptions, and can be copied, destroyed and made as before."""

import numpy as np
from cuda.bindings import driver
from gpu import LAYERED, at, box, call, check, copy_box, download, fill_array, main, make_array, open_device, read_array, upload


def numbers(*shape, kind=np.float32, seed=1):
    return np.random.default_rng(seed).integers(0, 100, shape).astype(kind)


def setup():
    context = open_device()
    kept = [
        (make_array((1000,)), numbers(1000)),
        (make_array((300, 200), np.uint8), numbers(200, 300, kind=np.uint8)),
        (make_array((33, 17, 9), np.int16), numbers(9, 17, 33, kind=np.int16)),
        (make_array((64, 32, 5), np.float16, flags=LAYERED), numbers(5, 32, 64, kind=np.float16)),
        (make_array((50, 0, 4), np.int32, flags=LAYERED), numbers(4, 1, 50, kind=np.int32)),
        # More than goes through at once, four channels an element.
        (make_array((1024, 700), channels=4), numbers(700, 4096)),
    ]
    for array, data in kept:
        fill_array(array, data)
    mipmapped = make_array((64, 16), np.uint32, levels=4)
    levels = [numbers(16 >> n, 64 >> n, kind=np.uint32, seed=n) for n in range(4)]
    for number, data in enumerate(levels):
        fill_array(call("cuMipmappedArrayGetLevel", mipmapped, number), data)
    gone = make_array((10, 10))
    call("cuArrayDestroy", gone)
    # A captured copy of an array is in a graph.
    flat, big = kept[1]
    source = upload(big)
    target = call("cuMemAlloc", big.nbytes)
    stream = call("cuStreamCreate", 1)
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    copy_box(target, flat, (300, 200, 1), stream=stream)
    graph = call("cuStreamEndCapture", stream)
    instance = call("cuGraphInstantiate", graph, 0)
    # More behind the captured copy makes a node of it; a node that is added by hand copies what it left on.
    (captured,), *_ = call("cuGraphGetNodes", graph, 1)
    between = make_array((300, 200), np.uint8)
    node = call("cuGraphAddMemcpyNode", graph, [captured], 1, box(between, target, (300, 200, 1)), context)
    again = call("cuMemAlloc", big.nbytes)
    call("cuGraphAddMemcpyNode", graph, [node], 1, box(again, between, (300, 200, 1)), context)
    longer = call("cuGraphInstantiate", graph, 0)
    pinned = call("cuMemHostAlloc", big.nbytes, 0)
    at(pinned, big.nbytes, np.uint8)[:] = big.ravel()[::-1]

    def verify():
        for array, data in kept:
            assert np.array_equal(read_array(array, data), data), data.shape
        for number, data in enumerate(levels):
            level = call("cuMipmappedArrayGetLevel", mipmapped, number)
            assert np.array_equal(read_array(level, data), data), number
            given = call("cuArray3DGetDescriptor", level)
            assert (given.Width, given.Height, given.Depth, given.NumChannels) == (64 >> number, 16 >> number, 0, 1)
        given = call("cuArrayGetDescriptor", flat)
        assert (given.Width, given.Height, int(given.Format)) == (300, 200, 1)
        call("cuMemsetD8", target, 0, big.nbytes)
        call("cuStreamSynchronize", 0)
        call("cuGraphLaunch", instance, stream)
        call("cuStreamSynchronize", stream)
        assert np.array_equal(download(target, big.size, np.uint8), big.ravel())
        for memory in (target, again):
            call("cuMemsetD8", memory, 0, big.nbytes)
        call("cuStreamSynchronize", 0)
        call("cuGraphLaunch", longer, stream)
        call("cuStreamSynchronize", stream)
        assert np.array_equal(download(again, big.size, np.uint8), big.ravel())

        # Parts of arrays, between each other and with memory of every kind.
        other = make_array((300, 200), np.uint8, flags=2)
        copy_box(other, source, (300, 200, 1))
        copy_box(other, flat, (50, 20, 1), at_to=(100, 30, 0), at_source=(7, 9, 0))
        expected = big.copy()
        expected[30:50, 100:150] = big[9:29, 7:57]
        assert np.array_equal(read_array(other, big), expected)
        copy_box(flat, int(pinned), (300, 200, 1), stream=stream)
        call("cuStreamSynchronize", stream)
        assert np.array_equal(read_array(flat, big).ravel(), big.ravel()[::-1])
        row, data = kept[0]
        call("cuMemcpyHtoA", row, 40, data.ctypes.data, 400)
        call("cuMemcpyAtoA", row, 2000, row, 40, 400)
        back = np.zeros(1000, np.float32)
        call("cuMemcpyAtoH", back.ctypes.data, row, 0, 4000)
        expected = data.copy()
        expected[10:110] = data[:100]
        expected[500:600] = data[:100]
        assert np.array_equal(back, expected)

        # What is wrong, is refused as before.
        wrong = driver.CUDA_MEMCPY3D()
        wrong.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY
        wrong.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        wrong.srcArray, wrong.dstDevice = flat, int(target)
        wrong.srcXInBytes, wrong.WidthInBytes, wrong.Height, wrong.Depth = 1, 300, 1, 1
        assert driver.cuMemcpy3D(wrong)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
        for array, _ in kept:
            call("cuArrayDestroy", array)
        call("cuMipmappedArrayDestroy", mipmapped)
        call("cuArrayDestroy", other)
        fresh = make_array((33, 17, 9), np.int16)
        fill_array(fresh, kept[2][1])
        assert np.array_equal(read_array(fresh, kept[2][1]), kept[2][1])
        check(driver.cuCtxSynchronize())

    return verify


main(setup)
