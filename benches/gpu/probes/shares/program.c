// A program that computes, told by its standard input, by the driver's functions alone.
//
//   compute SECONDS   large kernels, four always under way: how many were done, as `done N`
//   ask SECONDS       a small kernel and a wait for it, again and again: `times N MEDIAN P99 WORST` in microseconds
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCKS 5280
#define SHARED 40000
#define DEPTH 4
#define MOST (1 << 20)

// A block takes so many ticks wherever it runs, and five fit on a multiprocessor: what is done goes by their number.
static const char *const PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ticks) {\n"
    "  .reg .u64 %n, %t; .reg .pred %p;\n"
    "  ld.param.u64 %n, [ticks]; mov.u64 %t, %clock64; add.u64 %n, %n, %t;\n"
    "L: mov.u64 %t, %clock64; setp.lt.u64 %p, %t, %n; @%p bra L;\n"
    "  ret;\n}\n";

typedef void *handle;
static void *driver;

static void checked(const char *name, int code) {
    if (code) {
        fprintf(stderr, "%s: error %d\n", name, code);
        exit(1);
    }
}

static void *find(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(1);
    }
    return found;
}

#define CALL(name, types, ...) checked(#name, ((int(*) types)find(#name))(__VA_ARGS__))

static handle kernel, stream, events[DEPTH];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void launch(unsigned blocks, unsigned shared, unsigned long long ticks) {
    static int (*call)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
    if (!call) *(void **)&call = find("cuLaunchKernel");
    void *parameters[] = {&ticks};
    checked("cuLaunchKernel", call(kernel, blocks, 1, 1, 64, 1, 1, shared, stream, parameters, NULL));
}

static void wait_for_stream(void) {
    static int (*call)(handle);
    if (!call) *(void **)&call = find("cuStreamSynchronize");
    checked("cuStreamSynchronize", call(stream));
}

static void compute(double seconds) {
    double until = now() + seconds;
    long launched = 0, done = 0;
    while (now() < until) {
        if (launched >= DEPTH) {
            CALL(cuEventSynchronize, (handle), events[launched % DEPTH]);
            done++;
        }
        launch(BLOCKS, SHARED, 100000);
        CALL(cuEventRecord, (handle, handle), events[launched % DEPTH], stream);
        launched++;
    }
    wait_for_stream();
    printf("done %ld\n", done);
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void ask(double seconds) {
    double *times = malloc(MOST * sizeof *times), until = now() + seconds;
    long count = 0;
    while (now() < until && count < MOST) {
        double began = now();
        launch(8, 0, 10000);
        wait_for_stream();
        times[count++] = (now() - began) * 1e6;
    }
    qsort(times, count, sizeof *times, compare);
    printf("times %ld %.1f %.1f %.1f\n", count, times[count / 2], times[count * 99 / 100], times[count - 1]);
    free(times);
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int device;
    handle context, module;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDeviceGet, (int *, int), &device, 0);
    CALL(cuDevicePrimaryCtxRetain, (handle *, int), &context, device);
    CALL(cuCtxSetCurrent, (handle), context);
    CALL(cuModuleLoadData, (handle *, const void *), &module, PTX);
    CALL(cuModuleGetFunction, (handle *, handle, const char *), &kernel, module, "spin");
    CALL(cuStreamCreate, (handle *, unsigned), &stream, 1);
    for (int i = 0; i < DEPTH; i++) CALL(cuEventCreate, (handle *, unsigned), &events[i], 2);
    launch(8, 0, 10000);
    wait_for_stream();
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    char word[16];
    double seconds;
    while (scanf("%15s %lf", word, &seconds) == 2) {
        if (!strcmp(word, "compute")) compute(seconds);
        else ask(seconds);
    }
    return 0;
}
