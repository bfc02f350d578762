"""Green contexts: two parts of the multiprocessors, with streams of their own before and after. Kernels say where they run."""

import numpy as np
from cuda.bindings import driver
from gpu import Module, call, download, main, open_device, upload

BLOCKS, SIZE = 512, 8
SM = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
KERNELS = """
extern "C" __global__ void mark(unsigned *found) {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    if (threadIdx.x == 0) found[blockIdx.x] = number;
}
extern "C" __global__ void add(unsigned *words, unsigned n) { words[threadIdx.x] += n; }
"""


def code(name, *arguments):
    return int(getattr(driver, name)(*arguments)[0])


def setup():
    primary = open_device()
    device = call("cuCtxGetDevice")
    module = Module(KERNELS)
    marks, words = upload(np.zeros(BLOCKS, np.uint32)), upload(np.zeros(32, np.uint32))

    def used(stream):
        module.mark(BLOCKS, 32, marks, stream=stream)
        call("cuStreamSynchronize", stream)
        return set(download(marks, BLOCKS, np.uint32))

    whole = call("cuDeviceGetDevResource", device, SM)
    count = call("cuDeviceGetAttribute", driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)
    assert whole.sm.smCount == count >= 2 * SIZE
    assert call("cuCtxGetDevResource", primary, SM).sm.smCount == count
    groups, made, left = call("cuDevSmResourceSplitByCount", 2, whole, 0, SIZE)
    assert made == 2 and [group.sm.smCount for group in groups] == [SIZE, SIZE]
    assert left.sm.smCount == count - 2 * SIZE
    # What a division gives is divided again only once it is a green context's.
    assert code("cuDevSmResourceSplitByCount", 1, groups[0], 0, 0) == 915
    greens = []
    for group in groups:
        description = call("cuDevResourceGenerateDesc", [group], 1)
        greens.append(call("cuGreenCtxCreate", description, device, 1))
    contexts = [call("cuCtxFromGreenCtx", green) for green in greens]
    streams = [call("cuGreenCtxStreamCreate", green, 1, 0) for green in greens]
    assert code("cuGreenCtxStreamCreate", greens[0], 0, 0) == 1
    event = call("cuEventCreate", 2)

    def look():
        """Each part's kernels keep to it, in its stream, its default stream and one that is made where it is current."""
        parts = []
        for green, context, stream in zip(greens, contexts, streams):
            call("cuCtxSetCurrent", context)
            assert int(call("cuStreamGetGreenCtx", stream)) == int(call("cuStreamGetGreenCtx", 0)) == int(green)
            assert call("cuGreenCtxGetId", green) == call("cuGreenCtxGetId", 0)
            assert call("cuGreenCtxGetDevResource", green, SM).sm.smCount == SIZE
            assert call("cuCtxGetDevResource", context, SM).sm.smCount == SIZE
            own, of = call("cuStreamGetCtx_v2", stream)
            assert int(own) == int(primary) and int(of) == int(green)
            made = call("cuStreamCreate", 1)
            each = [used(stream), used(0), used(made)]
            assert int(call("cuStreamGetCtx", made)) == int(context)
            call("cuStreamDestroy", made)
            call("cuCtxSynchronize")
            parts.append(set.union(*each))
            assert all(one == each[0] for one in each), each
        call("cuCtxSetCurrent", primary)
        assert [len(part) for part in parts] == [SIZE, SIZE], parts
        assert not parts[0] & parts[1]
        assert int(call("cuStreamGetGreenCtx", 0)) == 0
        return parts

    def order(expected):
        """Work of one part behind all of the other's, by an event of the whole part."""
        for _ in range(20):
            module.add(1, 32, words, 1, stream=streams[0])
        call("cuGreenCtxRecordEvent", greens[0], event)
        call("cuGreenCtxWaitEvent", greens[1], event)
        late = call("cuGreenCtxStreamCreate", greens[1], 1, 0)
        for stream in (streams[1], late):
            call("cuGreenCtxRecordEvent", greens[1], event)
            call("cuStreamWaitEvent", stream, event, 0)
            module.add(1, 32, words, 100, stream=stream)
        call("cuCtxRecordEvent", primary, event)
        call("cuCtxWaitEvent", primary, event)
        call("cuEventSynchronize", event)
        call("cuStreamDestroy", late)
        assert (download(words, 32, np.uint32) == expected).all()

    look()
    order(220)

    def verify():
        look()
        order(440)
        # A green context's resource can be divided again.
        again = call("cuGreenCtxGetDevResource", greens[0], SM)
        (part,), made, _ = call("cuDevSmResourceSplitByCount", 1, again, 0, 0)
        small = call("cuGreenCtxCreate", call("cuDevResourceGenerateDesc", [part], 1), device, 1)
        stream = call("cuGreenCtxStreamCreate", small, 1, 0)
        assert used(stream) <= used(streams[0]) and len(used(stream)) == part.sm.smCount
        for green in (small, *greens):
            call("cuGreenCtxDestroy", green)
        for gone in (stream, *streams):
            assert code("cuStreamSynchronize", gone) == 709
        assert len(used(0)) > SIZE

    return verify


main(setup)
