// Products of matrices, tile by tile through shared memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 16;

template <typename T> __device__ float as_sum(T x) { return float(x); }
__device__ double as_sum(double x) { return x; }

template <typename T, typename S> __device__ void product(const T *a, const T *b, S *c, int m, int n, int k) {
    __shared__ T ta[TILE][TILE], tb[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    S sum = 0;
    for (int at = 0; at < k; at += TILE) {
        int ka = at + threadIdx.x, kb = at + threadIdx.y;
        ta[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : T(0.f);
        tb[threadIdx.y][threadIdx.x] = column < n && kb < k ? b[kb * n + column] : T(0.f);
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += as_sum(ta[threadIdx.y][i]) * as_sum(tb[i][threadIdx.x]);
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

#define KERNEL(name, T, S)                                                                                    \
    extern "C" __global__ void name(const T *a, const T *b, S *c, int m, int n, int k) { product(a, b, c, m, n, k); }
KERNEL(single, float, float)
KERNEL(twice, double, double)
KERNEL(half_precision, __half, float)
KERNEL(brain, __nv_bfloat16, float)

// Any tile size, in dynamic shared memory.
extern "C" __global__ void dynamic(const float *a, const float *b, float *c, int n, int side) {
    extern __shared__ float tiles[];
    float *ta = tiles, *tb = tiles + side * side;
    int x = threadIdx.x % side, y = threadIdx.x / side;
    int row = blockIdx.y * side + y, column = blockIdx.x * side + x;
    float sum = 0;
    for (int at = 0; at < n; at += side) {
        ta[y * side + x] = a[row * n + at + x];
        tb[y * side + x] = b[(at + y) * n + column];
        __syncthreads();
        for (int i = 0; i < side; i++) sum = fmaf(ta[y * side + i], tb[i * side + x], sum);
        __syncthreads();
    }
    c[row * n + column] = sum;
}
