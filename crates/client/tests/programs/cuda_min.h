/* What the test programs need of the driver API, declared by ourselves, and what they share.
 *
 * A program sets up, calls pause_here(argv), and verifies. pause_here waits for the file named by the first argument,
 * if there is one: that is where a test may do something to the process. */
#ifndef CUDA_MIN_H
#define CUDA_MIN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct graph *CUgraph;
typedef struct exec *CUgraphExec;
typedef struct node *CUgraphNode;

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemHostAlloc(void **, size_t, unsigned);
CUresult cuMemFreeHost(void *);
CUresult cuMemHostRegister_v2(void *, size_t, unsigned);
CUresult cuMemHostUnregister(void *);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned);
CUresult cuMemcpy(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemcpyDtoD_v2(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr, const void *, size_t);
CUresult cuMemcpy2D_v2(const void *);
CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuPointerGetAttribute(void *, int, CUdeviceptr);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleUnload(CUmodule);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuFuncGetAttribute(int *, int, CUfunction);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamSynchronize_ptsz(CUstream);
CUresult cuStreamQuery(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventQuery(CUevent);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
CUresult cuGetErrorName(CUresult, const char **);
CUresult cuOccupancyMaxPotentialBlockSize(int *, int *, CUfunction, size_t (*)(int), size_t, int);
CUresult cuVDPAUGetDevice(CUdevice *, unsigned, void *);

#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

#define EXPECT_CODE(call, expected) \
    do { \
        CUresult code_ = (call); \
        if (code_ != (expected)) { \
            fprintf(stderr, "%s:%d: %s gave %d where %d was expected\n", __FILE__, __LINE__, #call, code_, (expected)); \
            exit(1); \
        } \
    } while (0)

#define CHECK(call) EXPECT_CODE(call, 0)

enum { NOT_INITIALIZED = 3, DEVICE_UNAVAILABLE = 46, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400,
       NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, CONTEXT_DESTROYED = 709, NOT_SUPPORTED = 801 };

/* add: out[i] = a[i] + b[i] for i < n; scale: data[i] *= by, for every thread; spin: waits until *flag is not 0. */
static const char PTX[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry add(.param .u64 out, .param .u64 a, .param .u64 b, .param .u32 n)\n{\n"
    ".reg .pred %p<2>; .reg .b32 %r<10>; .reg .b64 %d<12>;\n"
    "ld.param.u64 %d1, [out]; ld.param.u64 %d2, [a]; ld.param.u64 %d3, [b]; ld.param.u32 %r1, [n];\n"
    "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;\n"
    "setp.ge.u32 %p1, %r5, %r1; @%p1 bra DONE;\n"
    "mul.wide.u32 %d4, %r5, 4; add.s64 %d5, %d2, %d4; add.s64 %d6, %d3, %d4; add.s64 %d7, %d1, %d4;\n"
    "ld.global.u32 %r6, [%d5]; ld.global.u32 %r7, [%d6]; add.u32 %r8, %r6, %r7; st.global.u32 [%d7], %r8;\n"
    "DONE: ret;\n}\n"
    ".visible .entry scale(.param .u64 data, .param .u32 by)\n{\n"
    ".reg .b32 %r<10>; .reg .b64 %d<6>;\n"
    "ld.param.u64 %d1, [data]; ld.param.u32 %r1, [by];\n"
    "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;\n"
    "mul.wide.u32 %d2, %r5, 4; add.s64 %d3, %d1, %d2;\n"
    "ld.global.u32 %r6, [%d3]; mul.lo.u32 %r7, %r6, %r1; st.global.u32 [%d3], %r7; ret;\n}\n"
    ".visible .entry spin(.param .u64 flag)\n{\n"
    ".reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<2>;\n"
    "ld.param.u64 %d1, [flag];\n"
    "AGAIN: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN; ret;\n}\n";

static inline CUcontext open_device(void) {
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    return context;
}

static inline CUfunction function(const char *name) {
    static CUmodule module;
    CUfunction found;
    if (!module) CHECK(cuModuleLoadData(&module, PTX));
    CHECK(cuModuleGetFunction(&found, module, name));
    return found;
}

static inline void pause_here(char **argv) {
    printf("ready\n");
    fflush(stdout);
    while (argv[1] && access(argv[1], F_OK)) usleep(2000);
}

static inline int ok(void) {
    printf("ok\n");
    return 0;
}

#endif
