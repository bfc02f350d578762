/* Functions that do what tests ask for: everything there is in arguments and results, and everything that can go wrong. */
#include <rekindle.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int cuMemAlloc_v2(uint64_t *address, size_t size);
int cuMemFree_v2(uint64_t address);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream);
int cuStreamSynchronize(void *stream);

/* Its argument. */
static int echo(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    const rekindle_value *given = rekindle_arguments(call, &count);
    if (!given)
        return REKINDLE_FAILED;
    const rekindle_value *named = rekindle_keyword(call, "named");
    return rekindle_give(call, named ? named : &given[0]);
}

static int nothing(rekindle_call *call, void *shared, void *own) {
    (void)call, (void)shared, (void)own;
    return REKINDLE_DONE;
}

/* raises(TYPE, TEXT) */
static int raises(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    const rekindle_value *given = rekindle_arguments(call, &count);
    rekindle_log(call, "about to fail");
    return rekindle_fail(call, given[0].data, given[1].data);
}

/* Fails without a word. */
static int silent(rekindle_call *call, void *shared, void *own) {
    (void)call, (void)shared, (void)own;
    return 7;
}

/* An instance counts its calls, and knows its stream. */
typedef struct {
    int64_t calls;
    void *stream;
} counted;

static int count_setup(rekindle_call *call, void **shared) {
    (void)call;
    *shared = calloc(1, sizeof(int64_t));
    return REKINDLE_DONE;
}

static int count_enter(rekindle_call *call, void *shared, void **own) {
    counted *made = calloc(1, sizeof *made);
    made->stream = rekindle_stream(call);
    __atomic_add_fetch((int64_t *)shared, 1, __ATOMIC_SEQ_CST);
    *own = made;
    return REKINDLE_DONE;
}

/* count(MARK): waits for the file MARK.go once it has made MARK.held. [calls of the instance, instances so far, stream] */
static int count(rekindle_call *call, void *shared, void *own_) {
    counted *own = own_;
    size_t given_count;
    const rekindle_value *given = rekindle_arguments(call, &given_count);
    if (given_count) {
        char path[4096];
        snprintf(path, sizeof path, "%s.held", (const char *)given[0].data);
        FILE *file = fopen(path, "w");
        if (!file)
            return rekindle_fail(call, "OSError", path);
        fclose(file);
        snprintf(path, sizeof path, "%s.go", (const char *)given[0].data);
        while (access(path, F_OK))
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    rekindle_value items[3] = {
        rekindle_value_of(REKINDLE_INTEGER), rekindle_value_of(REKINDLE_INTEGER), rekindle_value_of(REKINDLE_INTEGER)};
    items[0].integer = ++own->calls;
    items[1].integer = __atomic_load_n((int64_t *)shared, __ATOMIC_SEQ_CST);
    items[2].integer = own->stream == rekindle_stream(call) ? (int64_t)(uintptr_t)own->stream : -1;
    rekindle_value list = rekindle_value_of(REKINDLE_LIST);
    list.items = items;
    list.count = 3;
    return rekindle_give(call, &list);
}

static void count_leave(rekindle_call *call, void *shared, void *own) {
    (void)shared;
    rekindle_log(call, "an instance leaves");
    free(own);
}

static void count_teardown(rekindle_call *call, void *shared) {
    rekindle_log(call, "all is torn down");
    free(shared);
}

/* says(TEXT) prints it, as programs in C do. */
static int says(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    printf("%s\n", (const char *)rekindle_arguments(call, &count)[0].data);
    return REKINDLE_DONE;
}

/* flaky(COUNT) fails so often, and returns how often it was called. */
static int flaky(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    static int64_t calls;
    size_t count;
    const rekindle_value *given = rekindle_arguments(call, &count);
    int64_t calls_now = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    return calls_now > given[0].integer ? rekindle_give_integer(call, calls_now) : rekindle_fail(call, "OSError", "not yet");
}

static int crash(rekindle_call *call, void *shared, void *own) {
    (void)call, (void)shared, (void)own;
    volatile uintptr_t nowhere = 8;
    *(volatile int *)nowhere = 1;
    return REKINDLE_DONE;
}

/* An instance that cannot be. */
static int barred_enter(rekindle_call *call, void *shared, void **own) {
    (void)shared, (void)own;
    return rekindle_fail(call, "PermissionError", "nobody comes in");
}

/* fault(): a copy on the GPU from where nothing is. */
static int fault(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    extern int cuModuleLoadData(void **, const void *);
    extern int cuModuleGetFunction(void **, void *, const char *);
    static const char ptx[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry wild()\n{\n    .reg .b64 %rd;\n    .reg .b32 %r;\n"
        "    mov.u64 %rd, 4096;\n    ld.global.u32 %r, [%rd];\n    st.global.u32 [%rd], %r;\n    ret;\n}\n";
    void *module, *kernel;
    if (cuModuleLoadData(&module, ptx) || cuModuleGetFunction(&kernel, module, "wild"))
        return rekindle_fail(call, "GpuError", "no kernel");
    int code = cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, rekindle_stream(call), NULL, NULL);
    if (!code)
        code = cuStreamSynchronize(rekindle_stream(call));
    return code ? rekindle_fail(call, "GpuError", "the kernel failed") : REKINDLE_DONE;
}

/* keep(ARRAY, EXPIRY): a reference. */
static int keep(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    const rekindle_value *given = rekindle_arguments(call, &count);
    const rekindle_value *reference = rekindle_put(call, &given[0], count > 1 ? given[1].real : 300);
    return reference ? rekindle_give(call, reference) : REKINDLE_FAILED;
}

/* fetch(REFERENCE): its bytes. */
static int fetch(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    const rekindle_value *given = rekindle_arguments(call, &count);
    uint64_t address;
    if (rekindle_get(call, &given[0], &address))
        return REKINDLE_FAILED;
    size_t size = 4;
    for (size_t i = 0; i < given[0].dimensions; i++)
        size *= given[0].shape[i];
    void *data = malloc(size);
    int code = cuMemcpyDtoH_v2(data, address, size);
    cuMemFree_v2(address);
    rekindle_value array = rekindle_array(given[0].dtype, given[0].dimensions, given[0].shape, data, size);
    int done = code ? rekindle_fail(call, "GpuError", "no copy") : rekindle_give(call, &array);
    free(data);
    return done;
}

/* forget(REFERENCE) */
static int forget(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    return rekindle_drop(call, rekindle_arguments(call, &count));
}

/* loaded(NAME, LATER): the bytes of declared data. LATER: it is the copy that waits for them. */
static int loaded(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    const rekindle_value *given = rekindle_arguments(call, &count);
    const rekindle_value *data = rekindle_data(call, given[0].data, count < 2 || !given[1].integer);
    if (!data) {
        const char *type = "", *text = rekindle_problem(call, &type);
        rekindle_log(call, text);
        return REKINDLE_FAILED;
    }
    void *copy = malloc(data->size);
    uint64_t begin = rekindle_span_begin(call);
    int code = cuMemcpyDtoH_v2(copy, (uint64_t)data->integer, data->size);
    rekindle_span_end(call, "copy", begin);
    rekindle_value array = rekindle_array(data->dtype, data->dimensions, data->shape, copy, data->size);
    int done = code ? rekindle_fail(call, "GpuError", "no copy") : rekindle_give(call, &array);
    free(copy);
    return done;
}

/* message(VERSION): the message of this call as a library has it that reads up to this version; 0: that cannot say so. */
static int message(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    int64_t version = rekindle_arguments(call, &count)[0].integer;
    rekindle_value bytes = rekindle_value_of(REKINDLE_BYTES);
    bytes.data = version ? rekindle_message_in(call, (uint32_t)version, &bytes.size) : rekindle_message(call, &bytes.size);
    return rekindle_give(call, &bytes);
}

static const rekindle_function functions[] = {
    {.name = "echo", .call = echo},
    {.name = "nothing", .call = nothing},
    {.name = "raises", .call = raises},
    {.name = "silent", .call = silent},
    {.name = "count", .setup = count_setup, .enter = count_enter, .call = count, .leave = count_leave, .teardown = count_teardown},
    {.name = "says", .call = says},
    {.name = "flaky", .call = flaky},
    {.name = "crash", .call = crash},
    {.name = "barred", .enter = barred_enter, .call = nothing},
    {.name = "fault", .call = fault},
    {.name = "keep", .call = keep},
    {.name = "fetch", .call = fetch},
    {.name = "forget", .call = forget},
    {.name = "loaded", .call = loaded},
    {.name = "message", .call = message},
};
REKINDLE_LIBRARY(functions);
