/* Errors come out where CUDA's rules say. */
#include "cuda_min.h"

int main(int argc, char **argv) {
    (void)argc;
    EXPECT_CODE(cuCtxSynchronize(), NOT_INITIALIZED);
    CUcontext context;
    CHECK(cuInit(0));
    EXPECT_CODE(cuInit(1), INVALID_VALUE);
    CUdeviceptr device;
    EXPECT_CODE(cuMemAlloc_v2(&device, 100), INVALID_CONTEXT);
    context = open_device();
    EXPECT_CODE(cuMemAlloc_v2(&device, 0), INVALID_VALUE);
    EXPECT_CODE(cuMemAlloc_v2(0, 10), INVALID_VALUE);
    EXPECT_CODE(cuMemAlloc_v2(&device, (size_t)1 << 50), 2);
    CUfunction scale = function("scale"), missing;
    CUmodule module;
    CHECK(cuModuleLoadData(&module, PTX));
    EXPECT_CODE(cuModuleGetFunction(&missing, module, "nothing"), NOT_FOUND);
    CHECK(cuModuleUnload(module));
    EXPECT_CODE(cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\nnonsense\n"), 218);
    CHECK(cuMemAlloc_v2(&device, 4096));
    uint32_t by = 2;
    void *parameters[] = {&device, &by};
    EXPECT_CODE(cuLaunchKernel(scale, 0, 1, 1, 256, 1, 1, 0, 0, parameters, 0), INVALID_VALUE);
    EXPECT_CODE(cuLaunchKernel(scale, 1, 1, 1, 2048, 1, 1, 0, 0, parameters, 0), INVALID_VALUE);
    EXPECT_CODE(cuLaunchKernel(scale, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), INVALID_VALUE);
    EXPECT_CODE(cuLaunchKernel((CUfunction)0x40, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0), INVALID_HANDLE);
    CUfunction bounded;
    CHECK(cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry bounded() .maxntid 64 { ret; }"));
    CHECK(cuModuleGetFunction(&bounded, module, "bounded"));
    CHECK(cuLaunchKernel(bounded, 1, 1, 1, 64, 1, 1, 0, 0, 0, 0));
    EXPECT_CODE(cuLaunchKernel(bounded, 1, 1, 1, 65, 1, 1, 0, 0, 0, 0), INVALID_VALUE);
    EXPECT_CODE(cuVDPAUGetDevice(0, 0, 0), NOT_SUPPORTED);
    EXPECT_CODE(cuVDPAUGetDevice(0, 0, 0), NOT_SUPPORTED);
    const char *name;
    CHECK(cuGetErrorName(700, &name));
    EXPECT(!strcmp(name, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    EXPECT_CODE(cuGetErrorName(12345, &name), INVALID_VALUE);
    void *address;
    int status;
    CHECK(cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 0, &status));
    EXPECT(address == (void *)cuMemAlloc_v2 && status == 0);
    CHECK(cuGetProcAddress_v2("cuNothing", &address, 13000, 0, &status));
    EXPECT(!address && status == 1);
    pause_here(argv);

    /* A fault: launches still return, the next synchronising call tells, and the context is lost. */
    CUdeviceptr wild = 0x123000;
    parameters[0] = &wild;
    CHECK(cuLaunchKernel(scale, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0));
    EXPECT_CODE(cuCtxSynchronize(), ILLEGAL_ADDRESS);
    EXPECT_CODE(cuCtxSynchronize(), ILLEGAL_ADDRESS);
    EXPECT_CODE(cuMemAlloc_v2(&device, 100), ILLEGAL_ADDRESS);
    EXPECT_CODE(cuLaunchKernel(scale, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0), ILLEGAL_ADDRESS);
    CUcontext current;
    CHECK(cuCtxGetCurrent(&current));
    EXPECT(current == context);
    return ok();
}
