/* Threads on every processor that wait for each other, and a little work for the GPU between their turns.
 *
 * `program ROUNDS [gpu]` prints the milliseconds of each round. A round has 20 parts. In a part one thread has the GPU
 * set and give back 4 KB, if that was asked for, and then all compute and meet 50 times. */

#include <dlfcn.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PARTS = 20, MEETINGS = 50, STEPS = 20000, BYTES = 4096 };

static void *driver;

/* A function of the driver that must work. */
#define CALL(type, name, ...)                                               \
    do {                                                                    \
        int code = ((int(*) type)dlsym(driver, #name))(__VA_ARGS__);        \
        if (code) {                                                         \
            fprintf(stderr, "%s failed: %d\n", #name, code);                \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

static uint64_t open_gpu(void)
{
    int device;
    void *context;
    uint64_t address;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    CALL((unsigned), cuInit, 0);
    CALL((int *, int), cuDeviceGet, &device, 0);
    CALL((void **, int), cuDevicePrimaryCtxRetain, &context, device);
    CALL((void *), cuCtxSetCurrent, context);
    CALL((uint64_t *, size_t), cuMemAlloc_v2, &address, BYTES);
    return address;
}

static double milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int main(int count, char **words)
{
    int rounds = atoi(words[1]);
    char found[BYTES];
    uint64_t address = count > 2 ? open_gpu() : 0;
    for (int round = 0; round < rounds; round++) {
        double began = milliseconds();
        for (int part = 0; part < PARTS; part++) {
            if (driver) {
                CALL((uint64_t, unsigned char, size_t, void *), cuMemsetD8Async, address, (unsigned char)part, BYTES, NULL);
                CALL((void *, uint64_t, size_t), cuMemcpyDtoH_v2, found, address, BYTES);
                if (found[BYTES - 1] != (char)part)
                    return 1;
            }
#pragma omp parallel
            for (int meeting = 0; meeting < MEETINGS; meeting++) {
                double number = meeting;
                for (int step = 0; step < STEPS; step++)
                    number = number * 1.0000001 + 0.1;
                if (number == 0)
                    abort();
#pragma omp barrier
            }
        }
        printf("%.2f\n", milliseconds() - began);
    }
    return 0;
}
