"""More than a million events, made and destroyed one after the other; those that stay are found by their handles."""

import ctypes

from gpu import adder, call, driver, main

COUNT = 1_200_000
STAY = 300_000


def setup():
    module, n, a, _ = adder()
    stream = call("cuStreamCreate", 1)
    cuda = ctypes.CDLL("libcuda.so.1")
    create, destroy = cuda.cuEventCreate, cuda.cuEventDestroy_v2
    event = ctypes.c_void_p()
    place, stayed = ctypes.byref(event), []
    for number in range(COUNT):
        if create(place, 0):
            raise RuntimeError(f"event {number} was refused")
        if number % STAY == 0:
            stayed.append(driver.CUevent(event.value))
        elif destroy(event):
            raise RuntimeError(f"event {number} was not destroyed")
    # Whatever went wrong with them comes out here.
    call("cuCtxSynchronize")
    first, *others = stayed
    call("cuEventRecord", first, stream)
    last = call("cuEventCreate", 0)

    def verify():
        for end in (last, *others):
            module.add(n // 128, 128, a, 1.0, n, stream=stream)
            call("cuEventRecord", end, stream)
            call("cuEventSynchronize", end)
            assert call("cuEventElapsedTime", first, end) >= 0
            call("cuEventDestroy", end)
        assert driver.cuEventQuery(first)[0].value == 0
        streams = [call("cuStreamCreate", 1) for _ in range(3)]
        for other in streams:
            call("cuStreamWaitEvent", other, first, 0)
            call("cuStreamSynchronize", other)
            call("cuStreamDestroy", other)
        call("cuCtxSynchronize")

    return verify


main(setup)
