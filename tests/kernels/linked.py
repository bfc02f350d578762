"""Two pieces of PTX that the driver links, with globals on both sides."""

import numpy as np
from cuda.bindings import driver
from kernels import Kernels, call, main, open_device, ptx

NAMES = ("linked_caller", "linked_callee")


class Linked(Kernels):
    def __init__(self):
        open_device()
        state = call("cuLinkCreate", 0, [], [])
        for name in NAMES:
            text = ptx(name, b"--relocatable-device-code=true")
            kind = driver.CUjitInputType.CU_JIT_INPUT_PTX
            call("cuLinkAddData", state, kind, text, len(text), name.encode(), 0, [], [])
        code, _ = call("cuLinkComplete", state)
        self.module = call("cuModuleLoadData", code)
        call("cuLinkDestroy", state)


kernels = Linked()


def linked(random):
    weights = random.standard_normal(4).astype(np.float32)
    kernels.set_global("weights", weights)
    x, out = random.standard_normal(300).astype(np.float32), np.empty(300, np.float32)
    kernels.launch("apply", 3, 128, x, out, np.int32(300))
    kind = np.arange(300) % 4
    weighed = np.where(kind == 3, np.sqrt(abs(x)), x * weights[kind] + 7)
    assert np.allclose(out, weighed + weights[kind], rtol=1e-6, atol=1e-6)


def alone(_):
    """One half by itself is refused, and the log says what is missing."""
    log = bytearray(1024)
    option = driver.CUjit_option
    options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    state = call("cuLinkCreate", 2, options, [log, len(log)])
    text = ptx(NAMES[0], b"--relocatable-device-code=true")
    call("cuLinkAddData", state, driver.CUjitInputType.CU_JIT_INPUT_PTX, text, len(text), b"half", 0, [], [])
    (code, *_) = driver.cuLinkComplete(state)
    assert code != driver.CUresult.CUDA_SUCCESS and b"`weigh`" in log and b"`weights`" in log, (code, log)


main(linked, alone)
