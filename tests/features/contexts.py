"""Contexts that the program makes itself: each has its memory and modules, is current where it was made so, and takes its memory along
when it ends."""

import numpy as np
from cuda.bindings import driver
from gpu import Module, call, download, main, upload

N = 1000
BUMP = 'extern "C" __global__ void bump(int *a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] += 1; }'


def made(parameters):
    """A context, current, with a module and numbers of its own."""
    context = call("cuCtxCreate", parameters, driver.CUctx_flags.CU_CTX_SCHED_SPIN.value | driver.CUctx_flags.CU_CTX_MAP_HOST.value, 0)
    assert int(call("cuCtxGetCurrent")) == int(context)
    return context, Module(BUMP), upload(np.arange(N, dtype=np.int32))


def bumped(module, numbers, times):
    module.bump((N + 127) // 128, 128, numbers, N)
    call("cuCtxSynchronize")
    return np.array_equal(download(numbers, N, np.int32), np.arange(N) + times)


def setup():
    call("cuInit", 0)
    # As programs for CUDA 13 say that they want nothing special, and as those for 12 do.
    empty, odd = driver.CUctxCreateParams(), driver.CUctxCreateParams()
    odd.numExecAffinityParams = 1
    assert int(driver.cuCtxCreate(odd, 0, 0)[0]) != 0
    first, second = made(empty), made(None)
    assert bumped(*second[1:], 1)
    call("cuCtxPushCurrent", first[0])
    assert bumped(*first[1:], 1)
    assert int(call("cuCtxPopCurrent")) == int(first[0])

    def verify():
        assert int(call("cuCtxGetCurrent")) == int(second[0])
        assert bumped(*second[1:], 2)
        call("cuCtxSetCurrent", first[0])
        assert bumped(*first[1:], 2)
        call("cuCtxDestroy", second[0])
        assert driver.cuMemFree(second[2])[0].value != 0, "it went with its context"
        assert bumped(*first[1:], 3)

    return verify


main(setup)
