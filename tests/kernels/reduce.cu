// Sums, scans and counts over warps, blocks and the grid.

__device__ float sum_of_warp(float v) {
    for (int k = 16; k; k >>= 1) v += __shfl_down_sync(~0u, v, k);
    return v;
}

extern "C" __global__ void sum(const float *x, float *total, double *total64, int n) {
    __shared__ float parts[32];
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    v = sum_of_warp(v);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = sum_of_warp(threadIdx.x < (blockDim.x + 31) / 32 ? parts[threadIdx.x] : 0);
        if (threadIdx.x == 0) {
            atomicAdd(total, v);
            atomicAdd(total64, (double)v);
        }
    }
}

extern "C" __global__ void extremes(const int *x, int *low, unsigned *high, unsigned long long *bits, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicMin(low, x[i]);
    atomicMax(high, (unsigned)x[i]);
    atomicXor(bits, (unsigned long long)x[i] << 20);
}

extern "C" __global__ void histogram(const unsigned char *x, int *counts, int n) {
    __shared__ int mine[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) mine[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[x[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) if (mine[i]) atomicAdd(&counts[i], mine[i]);
}

// The running sum of one block, warp by warp.
extern "C" __global__ void scan(const int *x, int *out) {
    __shared__ int sums[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, v = x[threadIdx.x];
    for (int k = 1; k < 32; k <<= 1) {
        int below = __shfl_up_sync(~0u, v, k);
        if (lane >= k) v += below;
    }
    if (lane == 31) sums[warp] = v;
    __syncthreads();
    for (int w = 0; w < warp; w++) v += sums[w];
    out[threadIdx.x] = v;
}

extern "C" __global__ void votes(const int *x, unsigned *out) {
    int i = threadIdx.x, v = x[i];
    unsigned *o = out + 8 * i;
    o[0] = __ballot_sync(~0u, v & 1);
    o[1] = __any_sync(~0u, v == 7) | __all_sync(~0u, v < 8) << 1;
    o[2] = __match_any_sync(~0u, v);
    o[3] = __reduce_add_sync(~0u, v);
    o[4] = __reduce_max_sync(~0u, v);
    o[5] = __shfl_sync(~0u, v, v, 8);
    o[6] = __shfl_xor_sync(~0u, v, 5);
    o[7] = v & 1 ? __popc(__activemask()) : 0;
}

// A queue that threads of all blocks append to: each number that passes is there once.
extern "C" __global__ void filter(const int *x, int *out, int *count, int n, int limit) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] < limit) out[atomicAdd(count, 1)] = x[i];
}
