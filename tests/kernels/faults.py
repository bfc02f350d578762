"""Prints from kernels, and a fault that stays: `faults.py FOLDER SEED KERNEL`, where KERNEL is what fails."""

import sys

import numpy as np
from cuda.bindings import driver
from kernels import Kernels, call, main

kernels = Kernels("faults")
ERRORS = {
    "check": "CUDA_ERROR_ASSERT",
    "trap": "CUDA_ERROR_LAUNCH_FAILED",
    "wild": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "misaligned": "CUDA_ERROR_MISALIGNED_ADDRESS",
}


def prints(random):
    x = random.random(5, np.float32)
    for i, value in enumerate(x.tolist()):
        print(f"expect thread {i} of block: {value:.3f} {-i:5d}|{i:<4d}|{255 + i:x} {chr(97 + i)} {i << 33} %", flush=True)
    kernels.launch("hello", 1, 32, x, np.int32(5))


def fails(random):
    kernel = sys.argv[3]
    x = random.integers(0, 40, 64, np.int32)
    kernels.launch(kernel, 1, 64, x)
    x[int(random.integers(64))] = 50 if kernel != "check" else 100
    try:
        kernels.launch(kernel, 1, 64, x)
    except RuntimeError as error:
        assert ERRORS[kernel] in str(error), error
    else:
        raise AssertionError("the fault was not told")
    # The context is lost: what needs it says the same from now on.
    for answer in (driver.cuCtxSynchronize(), driver.cuMemAlloc(4), driver.cuStreamCreate(0)):
        assert answer[0].name == ERRORS[kernel], answer
    assert call("cuDriverGetVersion") >= 13000


main(prints, fails)
