// Half of a program: what it calls and the table it reads are in the other half.
extern "C" __device__ float weigh(float x, int kind);
extern "C" __device__ float weights[4];
__device__ int calls_made;

extern "C" __global__ void apply(const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(&calls_made, 1);
    out[i] = weigh(x[i], i % 4) + weights[i % 4];
}
