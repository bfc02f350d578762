// Kernels that reach globals, constants, functions and shared memory in every way that code which can be taken apart
// does, compiled at once or (LINKED) linked, where only tables of functions would keep it whole. Each gets room for results and is run as one block of 64 threads; results hold no addresses.
#include <cstdio>

typedef unsigned long long word;

__device__ word counter[16];
__device__ int table[4] = {1, 2, 3, 4};
__device__ int *inner = &table[2];
__device__ int **chain = &inner;
__device__ double angles[64];

#ifndef LINKED
__device__ int plus(int x) { return x + 1; }
__device__ int twice(int x) { return x * 2; }
__device__ int (*functions[2])(int) = {plus, twice};
extern "C" __global__ void indirect(word *out) { out[threadIdx.x] = functions[threadIdx.x & 1](threadIdx.x); }
#endif

__device__ __noinline__ int deep(int x) { return x * table[x & 3] + 1; }
__device__ __noinline__ int step(int x) { return deep(x) + deep(x + 1); }
__device__ __noinline__ int round_trip(int x) { return x < 2 ? table[x & 3] : round_trip(x - 1) + round_trip(x - 2); }

extern "C" __global__ void plain(word *out) { out[threadIdx.x] = threadIdx.x * 3; }
extern "C" __global__ void globals(word *out) {
    counter[threadIdx.x & 15] = threadIdx.x & 15;
    atomicAdd(&counter[15], 1);
    out[threadIdx.x] = table[threadIdx.x & 3];
}
extern "C" __global__ void pointers(word *out) { out[threadIdx.x] = *inner + **chain + (&table[2] == inner) * 100; }
extern "C" __global__ void calls(word *out) { out[threadIdx.x] = step(threadIdx.x); }
extern "C" __global__ void recursive(word *out) { out[threadIdx.x] = round_trip(threadIdx.x & 7); }
extern "C" __global__ void shared(word *out) {
    __shared__ word tile[64];
    extern __shared__ word more[];
    tile[threadIdx.x] = threadIdx.x * threadIdx.x;
    more[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = tile[63 - threadIdx.x] + more[threadIdx.x ^ 1];
}
extern "C" __global__ void reduces(word *out) {
    angles[threadIdx.x] = sin(1e18 * (threadIdx.x + 1));
    out[threadIdx.x] = __double_as_longlong(angles[threadIdx.x]);
}
extern "C" __global__ void says(word *out) {
    if (threadIdx.x == 0) printf("said %d %s\n", table[3], "text");
    out[threadIdx.x] = 1;
}
extern "C" __global__ void allocates(word *out) {
    word *mine = (word *)malloc(8);
    *mine = threadIdx.x + 5;
    out[threadIdx.x] = *mine;
    free(mine);
}
extern "C" __global__ void __cluster_dims__(1, 1, 1) clustered(word *out) { out[threadIdx.x] = table[1] + threadIdx.x; }
