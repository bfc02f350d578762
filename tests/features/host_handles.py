"""Handles whose memory is the host's: mapped where the program wants them, read and written by program and kernels alike, and mapped
elsewhere with what they hold, as programs do whose memory grows."""

import numpy as np
from cuda.bindings import driver
from gpu import Module, at, call, main, open_device

BUMP = 'extern "C" __global__ void bump(unsigned *a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] += 1; }'
DEVICE, NUMA = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
READ_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
MEMORY_TYPE = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE


def place(kind):
    location = driver.CUmemLocation()
    location.type, location.id = kind, 0
    return location


def fails(name, *arguments):
    return int(getattr(driver, name)(*arguments)[0]) != 0


def setup():
    open_device()
    module = Module(BUMP)
    wanted = driver.CUmemAllocationProp()
    wanted.type, wanted.location = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED, place(NUMA)
    size = call("cuMemGetAllocationGranularity", wanted, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
    n = size // 4
    access = [driver.CUmemAccessDesc() for _ in range(2)]
    for one, kind in zip(access, (DEVICE, NUMA)):
        one.location, one.flags = place(kind), READ_WRITE

    def mapped(address, handle):
        call("cuMemMap", address, size, 0, handle, 0)
        call("cuMemSetAccess", address, size, access, 2)
        return at(address, n, np.uint32)

    def bump(address, count):
        module.bump((count + 127) // 128, 128, np.uint64(address), count)
        call("cuCtxSynchronize")

    first = int(call("cuMemAddressReserve", 2 * size, 0, 0, 0))
    handles = [call("cuMemCreate", size, wanted, 0) for _ in range(2)]
    for number, handle in enumerate(handles):
        view = mapped(first + number * size, handle)
        assert not view.any()
        view[:] = np.arange(n) + number
    assert int(call("cuPointerGetAttribute", MEMORY_TYPE, first)) == 1
    # One kernel over both.
    bump(first, 2 * n)
    assert np.array_equal(at(first, 2 * n, np.uint32), np.concatenate([np.arange(n) + 1, np.arange(n) + 2]))
    # Nothing else takes its place meanwhile.
    elsewhere = int(call("cuMemAddressReserve", 4 * size, 0, 0, 0))
    left = call("cuMemCreate", size, wanted, 0)
    assert fails("cuMemMap", first, size, 0, left, 0) and fails("cuMemAddressFree", first, 2 * size)
    # What is mapped anew, elsewhere, holds what it held.
    call("cuMemUnmap", first, 2 * size)
    call("cuMemAddressFree", first, 2 * size)
    for number, handle in enumerate(handles):
        mapped(elsewhere + (1 - number) * size, handle)
    mapped(elsewhere + 2 * size, left)[:] = 7
    call("cuMemUnmap", elsewhere + 2 * size, size)

    def verify():
        both = at(elsewhere, 2 * n, np.uint32)
        assert np.array_equal(both, np.concatenate([np.arange(n) + 2, np.arange(n) + 1]))
        both[0] = 99
        bump(elsewhere, 2 * n)
        assert both[0] == 100 and np.array_equal(both[1:], np.concatenate([np.arange(n) + 3, np.arange(n) + 2])[1:])
        # One that was not mapped when the image was taken.
        assert np.all(mapped(elsewhere + 3 * size, left) == 7)
        bump(elsewhere + 3 * size, n)
        assert np.all(at(elsewhere + 3 * size, n, np.uint32) == 8)
        call("cuMemUnmap", elsewhere, 2 * size)
        call("cuMemUnmap", elsewhere + 3 * size, size)
        call("cuMemAddressFree", elsewhere, 4 * size)
        for handle in (*handles, left):
            call("cuMemRelease", handle)

    return verify


main(setup)
