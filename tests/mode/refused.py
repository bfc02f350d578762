"""Asks the driver for things that sandboxes do not have, says what it was told, and waits for the file that it is given.

refused.py FILE           something that a program cannot do without
refused.py FILE without   before that, what NCCL asks for, which goes without it
refused.py FILE harmless  nothing
"""

import ctypes
import os
import sys
import time

GPUDIRECT_RDMA, DMA_BUFFERS, FABRIC_HANDLES, MULTICAST = (110, 116), (124,), (128,), (132,)
PINNED, HOST_NUMA, DESCRIPTOR = 1, 3, 1
NOT_SUPPORTED = 801


class AllocationProperties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("rest", ctypes.c_uint8 * 16),
    ]


def go_without(cuda):
    value = ctypes.c_int(7)
    for attribute in (*GPUDIRECT_RDMA, *DMA_BUFFERS, *FABRIC_HANDLES, *MULTICAST):
        assert cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0 and value.value == 0, attribute
    wanted = AllocationProperties(type=PINNED, handle_types=DESCRIPTOR, location_type=HOST_NUMA)
    size, handle = ctypes.c_size_t(), ctypes.c_uint64()
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemGetAllocationGranularity(ctypes.byref(size), ctypes.byref(wanted), 0) == 0 and size.value > 0
    assert cuda.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(wanted), ctypes.c_uint64(0)) == NOT_SUPPORTED


cuda = ctypes.CDLL("libcuda.so.1")
opened = cuda.cuInit(0)
if "without" in sys.argv:
    go_without(cuda)
if "harmless" not in sys.argv:
    print(opened, cuda.cuImportExternalMemory(None, None), flush=True)
else:
    print(opened, flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.005)
