"""What the kernel programs share: PTX from either compiler, launches on NumPy arrays, random inputs.

A program is started as `PROGRAM.py FOLDER`. Where FOLDER has `SOURCE.ptx`, nvcc has compiled it; otherwise NVRTC does it
here. `main(check, ...)` runs the checks with a random seed each time and prints it, so that a failure can be had again:
`PROGRAM.py FOLDER SEED`.
"""

import secrets
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "features"))
import gpu  # noqa: E402
import nvidia  # noqa: E402
from gpu import call, open_device  # noqa: E402

INCLUDE = next(path for root in nvidia.__path__ for path in Path(root).glob("cu13/include"))


def ptx(source, *options):
    compiled = Path(sys.argv[1]) / f"{source}.ptx"
    if compiled.exists():
        return compiled.read_bytes()
    folders = [f"--include-path={path}".encode() for path in (INCLUDE, INCLUDE / "cccl")]
    return gpu.compile_ptx((HERE / f"{source}.cu").read_text(), *folders, *options)


class Kernels:
    """A loaded module. Arrays among a launch's arguments are copied to the GPU and, afterwards, back."""

    def __init__(self, source):
        open_device()
        self.module = call("cuModuleLoadData", ptx(source))

    def launch(self, name, grid, block, *arguments, shared=0, cooperative=False):
        function = call("cuModuleGetFunction", self.module, name.encode())
        if shared > 48 << 10:
            from cuda.bindings.driver import CUfunction_attribute as Attribute

            call("cuFuncSetAttribute", function, Attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
        held = [(a, call("cuMemAlloc", a.nbytes)) for a in arguments if isinstance(a, np.ndarray)]
        for array, address in held:
            call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)
        places = iter(held)
        slots = [np.uint64(int(next(places)[1])) if isinstance(a, np.ndarray) else a for a in arguments]
        slots = [np.atleast_1d(slot) for slot in slots]
        pointers = np.array([slot.ctypes.data for slot in slots], np.uint64)
        grid, block = (np.resize(np.append(size, [1, 1]), 3).tolist() for size in (grid, block))
        launch = "cuLaunchCooperativeKernel" if cooperative else "cuLaunchKernel"
        extra = () if cooperative else (0,)
        call(launch, function, *grid, *block, shared, 0, pointers.ctypes.data, *extra)
        for array, address in held:
            call("cuMemcpyDtoH", array.ctypes.data, address, array.nbytes)
            call("cuMemFree", address)

    def set_global(self, name, array):
        address, size = call("cuModuleGetGlobal", self.module, name.encode())
        assert size == array.nbytes, (size, array.nbytes)
        call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)


def main(*checks):
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbits(32)
    print("seed", seed, flush=True)
    for check in checks:
        check(np.random.default_rng(seed))
    print("ok", flush=True)
