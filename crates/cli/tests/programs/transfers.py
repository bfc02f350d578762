"""Copies 3 MB to the GPU and 1 MB from it, of each 1 MB by pinned memory, and 1 MB within it; works until it is ended."""

import ctypes

MB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name} failed: {code}"


device, context = ctypes.c_int(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
one, other, pinned = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_void_p()
call("cuMemAlloc_v2", ctypes.byref(one), 2 * MB)
call("cuMemAlloc_v2", ctypes.byref(other), 2 * MB)
call("cuMemHostAlloc", ctypes.byref(pinned), MB, 0)
pageable = ctypes.create_string_buffer(MB)
for _ in range(2):
    call("cuMemcpyHtoD_v2", one, pageable, MB)
call("cuMemcpyDtoD_v2", other, one, MB)
call("cuMemcpyHtoDAsync_v2", one, pinned, MB, None)
call("cuMemcpyDtoHAsync_v2", pinned, other, MB, None)
call("cuCtxSynchronize")
print("copied", flush=True)
while True:
    pass
