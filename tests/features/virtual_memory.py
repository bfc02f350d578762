"""Reservations, physical memory and mappings made by the program (expandable segments) stay as they were."""

import numpy as np
from gpu import call, download, driver, main, open_device


def setup():
    open_device()
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    grain = call("cuMemGetAllocationGranularity", properties, driver.CUmemAllocationGranularity_flags(0))
    # Who asks for memory on the host may go without it, and asks for its pieces first, as NCCL does.
    host = driver.CUmemAllocationProp()
    host.type, host.location.type = properties.type, driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
    assert call("cuMemGetAllocationGranularity", host, driver.CUmemAllocationGranularity_flags(0)) > 0
    base = int(call("cuMemAddressReserve", 8 * grain, 0, 0, 0))
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE

    def extend(k):
        handle = call("cuMemCreate", grain, properties, 0)
        call("cuMemMap", base + k * grain, grain, 0, handle, 0)
        call("cuMemSetAccess", base + k * grain, grain, [access], 1)
        call("cuMemsetD32", base + k * grain, k + 1, grain // 4)
        # It goes on when the call returns, and the memory is not to be unmapped before its end.
        call("cuStreamSynchronize", 0)
        return handle

    handles = [extend(k) for k in range(3)]
    call("cuMemUnmap", base + grain, grain)

    def verify():
        assert np.all(download(base, grain // 4, np.uint32) == 1)
        assert np.all(download(base + 2 * grain, grain // 4, np.uint32) == 3)
        call("cuMemMap", base + grain, grain, 0, handles[1], 0)
        call("cuMemSetAccess", base + grain, grain, [access], 1)
        assert np.all(download(base, 3 * grain // 4, np.uint32).reshape(3, -1) == [[1], [2], [3]])
        handles.append(extend(3))
        for k, handle in enumerate(handles):
            call("cuMemUnmap", base + k * grain, grain)
            call("cuMemRelease", handle)
        call("cuMemAddressFree", base, 8 * grain)

    return verify


main(setup)
