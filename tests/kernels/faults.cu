// Kernels that print and kernels that fail.
#ifndef __CUDACC_RTC__
#include <cassert>
#include <cstdio>
#endif

extern "C" __global__ void hello(const float *x, int n) {
    int i = threadIdx.x;
    if (i < n) printf("thread %d of %s: %.3f %5d|%-4u|%x %c %lld %%\n", i, "block", x[i], -i, i, 255 + i, 'a' + i, (long long)i << 33);
}

extern "C" __global__ void check(const int *x) { assert(x[threadIdx.x] < 100); }
extern "C" __global__ void trap(const int *x) { if (x[threadIdx.x] == 50) asm("trap;"); }
extern "C" __global__ void wild(const int *x) { if (x[threadIdx.x] == 50) *(volatile int *)(0x123456789000ull) = 1; }
extern "C" __global__ void misaligned(const int *x) { *(volatile int *)((char *)x + (x[threadIdx.x] == 50)); }
