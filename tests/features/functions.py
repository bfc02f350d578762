"""Kernel attributes that were set, kernels of libraries, and modules that were linked still work."""

import numpy as np
from gpu import Module, call, compile_ptx, download, driver, main, open_device, pack, upload

SOURCE = """extern "C" __global__ void reverse(float *a, int n) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = a[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) a[i] = tile[n - 1 - i];
}"""
HALVES = (
    'extern "C" __device__ int helper(int); extern "C" __global__ void apply(int *a) { a[threadIdx.x] = helper(a[threadIdx.x]); }',
    'extern "C" __device__ int helper(int x) { return 3 * x + 1; }',
)


def setup():
    open_device()
    module, n = Module(SOURCE), 20_000
    function = module.function("reverse")
    call("cuFuncSetAttribute", function, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4 * n)
    library = call("cuLibraryLoadData", compile_ptx(SOURCE), [], [], 0, [], [], 0)
    kernel = call("cuLibraryGetKernel", library, b"reverse")
    link = call("cuLinkCreate", 0, [], [])
    for k, half in enumerate(HALVES):
        ptx = compile_ptx(half, b"--relocatable-device-code=true")
        call("cuLinkAddData", link, driver.CUjitInputType.CU_JIT_INPUT_PTX, ptx, len(ptx), f"half{k}".encode(), 0, [], [])
    cubin, size = call("cuLinkComplete", link)
    linked = call("cuModuleLoadData", int(cubin))
    call("cuLinkDestroy", link)
    apply = call("cuModuleGetFunction", linked, b"apply")
    values = np.arange(n, dtype=np.float32)
    buffer, numbers = upload(values), upload(np.arange(32, dtype=np.int32))

    def launch(function, block, shared, *arguments):
        slots, pointers = pack(arguments)
        call("cuLaunchKernel", function, 1, 1, 1, block, 1, 1, shared, 0, pointers.ctypes.data, 0)

    def verify():
        launch(function, 256, 4 * n, buffer, n)
        assert np.array_equal(download(buffer, n), values[::-1])
        launch(call("cuKernelGetFunction", kernel), 256, 4000, buffer, 1000)
        assert np.array_equal(download(buffer, 1000), values[::-1][:1000][::-1])
        launch(apply, 32, 0, numbers)
        assert np.array_equal(download(numbers, 32, np.int32), 3 * np.arange(32) + 1)

    return verify


main(setup)
