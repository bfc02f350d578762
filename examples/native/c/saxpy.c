/* A function in C: saxpy(a, x, y) computes a * x + y on the GPU, on its instance's own stream.
 *
 *     cc -O2 -shared -fPIC -I INCLUDE -o libsaxpy.so saxpy.c          (INCLUDE: where rekindle.h is)
 *
 * Its GPU calls are the driver's. A program with the CUDA toolkit includes cuda.h for them; the few that are used here are
 * declared below, so that a C compiler is all that it needs. */
#include <rekindle.h>

#include <stdlib.h>
#include <stdio.h>

typedef uint64_t CUdeviceptr;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
int cuModuleLoadData(CUmodule *module, const void *image);
int cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
int cuModuleUnload(CUmodule module);
int cuMemAlloc_v2(CUdeviceptr *address, size_t size);
int cuMemFree_v2(CUdeviceptr address);
int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream);
int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream);
int cuStreamSynchronize(CUstream stream);
int cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned width, unsigned height, unsigned depth,
                   unsigned shared, CUstream stream, void **parameters, void **extra);

static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 count)\n"
    "{\n"
    "    .reg .pred %p;\n    .reg .b32 %r<5>;\n    .reg .f32 %f<5>;\n    .reg .b64 %rd<5>;\n"
    "    ld.param.f32 %f0, [a];\n    ld.param.u64 %rd0, [x];\n    ld.param.u64 %rd1, [y];\n    ld.param.u32 %r0, [count];\n"
    "    mov.u32 %r1, %ctaid.x;\n    mov.u32 %r2, %ntid.x;\n    mov.u32 %r3, %tid.x;\n    mad.lo.s32 %r4, %r1, %r2, %r3;\n"
    "    setp.ge.u32 %p, %r4, %r0;\n    @%p bra done;\n"
    "    mul.wide.u32 %rd2, %r4, 4;\n    add.u64 %rd3, %rd0, %rd2;\n    add.u64 %rd4, %rd1, %rd2;\n"
    "    ld.global.f32 %f1, [%rd3];\n    ld.global.f32 %f2, [%rd4];\n    fma.rn.f32 %f3, %f0, %f1, %f2;\n"
    "    st.global.f32 [%rd4], %f3;\n"
    "done:\n    ret;\n}\n";

/* What all instances have in common. */
typedef struct {
    CUmodule module;
    CUfunction kernel;
} shared_state;

/* What an instance has: two buffers, which grow to what its calls need. */
typedef struct {
    CUdeviceptr x, y;
    size_t room;
} own_state;

static int failed(rekindle_call *call, const char *what, int code) {
    char text[100];
    snprintf(text, sizeof text, "%s failed with the CUDA error %d", what, code);
    return rekindle_fail(call, "GpuError", text);
}

static int setup(rekindle_call *call, void **shared) {
    shared_state *made = calloc(1, sizeof *made);
    int code = made ? cuModuleLoadData(&made->module, ptx) : 2;
    if (!code)
        code = cuModuleGetFunction(&made->kernel, made->module, "saxpy");
    *shared = made;
    return code ? failed(call, "loading the kernel", code) : REKINDLE_DONE;
}

static int enter(rekindle_call *call, void *shared, void **own) {
    (void)shared;
    *own = calloc(1, sizeof(own_state));
    return *own ? REKINDLE_DONE : rekindle_fail(call, "MemoryError", "there is no memory for an instance");
}

static void let_go(own_state *own) {
    if (own->x)
        cuMemFree_v2(own->x);
    if (own->y)
        cuMemFree_v2(own->y);
    own->x = own->y = own->room = 0;
}

static int make_room(own_state *own, size_t size) {
    if (size <= own->room)
        return 0;
    let_go(own);
    int code = cuMemAlloc_v2(&own->x, size);
    if (!code)
        code = cuMemAlloc_v2(&own->y, size);
    own->room = code ? 0 : size;
    return code;
}

static int is_floats(const rekindle_value *value) {
    return value->kind == REKINDLE_ARRAY && !strcmp(value->dtype, "float32") && value->dimensions == 1;
}

static int carry(rekindle_call *call, void *shared, void *own_) {
    shared_state *state = shared;
    own_state *own = own_;
    size_t count;
    const rekindle_value *given = rekindle_arguments(call, &count);
    if (!given)
        return REKINDLE_FAILED; /* the reason is noted */
    if (count != 3 || given[0].kind != REKINDLE_REAL || !is_floats(&given[1]) || !is_floats(&given[2]))
        return rekindle_fail(call, "TypeError", "saxpy takes a number and two arrays of float32 with one dimension");
    if (given[1].size != given[2].size || !given[1].size)
        return rekindle_fail(call, "ValueError", "the arrays are to have the same size, which is not 0");
    CUstream stream = rekindle_stream(call);
    size_t size = given[1].size;
    float a = (float)given[0].real;
    unsigned length = (unsigned)(size / sizeof(float));
    void *parameters[] = {&a, &own->x, &own->y, &length};
    float *result = malloc(size);
    int code = result ? make_room(own, size) : 2;
    if (!code)
        code = cuMemcpyHtoDAsync_v2(own->x, given[1].data, size, stream);
    if (!code)
        code = cuMemcpyHtoDAsync_v2(own->y, given[2].data, size, stream);
    if (!code)
        code = cuLaunchKernel(state->kernel, (length + 127) / 128, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
    if (!code)
        code = cuMemcpyDtoHAsync_v2(result, own->y, size, stream);
    if (!code)
        code = cuStreamSynchronize(stream);
    if (code) {
        free(result);
        return failed(call, "saxpy", code);
    }
    rekindle_value value = rekindle_array("float32", 1, given[1].shape, result, size);
    int done = rekindle_give(call, &value);
    free(result);
    return done;
}

static void leave(rekindle_call *call, void *shared, void *own) {
    (void)call, (void)shared;
    let_go(own);
    free(own);
}

static void teardown(rekindle_call *call, void *shared) {
    (void)call;
    cuModuleUnload(((shared_state *)shared)->module);
    free(shared);
}

static const rekindle_function functions[] = {
    {.name = "saxpy", .setup = setup, .enter = enter, .call = carry, .leave = leave, .teardown = teardown},
};
REKINDLE_LIBRARY(functions);
