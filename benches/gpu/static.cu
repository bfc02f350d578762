// A program that nvcc links with the static CUDA runtime. Same lines as workloads.py prints: `step I DIGEST`.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

__device__ unsigned long long launches;
__constant__ float factor;

__global__ void mix(float *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) ++launches;
    if (i < n) a[i] = a[i] * factor + i % 7;
}

static void check(cudaError_t code) {
    if (code != cudaSuccess) { fprintf(stderr, "%s\n", cudaGetErrorString(code)); exit(1); }
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 10, n = 1 << 20;
    double pause = argc > 2 ? atof(argv[2]) : 0;
    float *device, *host, f = 0.75f;
    check(cudaMalloc(&device, n * sizeof(float)));
    check(cudaMallocHost(&host, n * sizeof(float)));
    check(cudaMemset(device, 0, n * sizeof(float)));
    check(cudaMemcpyToSymbol(factor, &f, sizeof f));
    for (int step = 0; step < steps; ++step) {
        mix<<<n / 256, 256>>>(device, n);
        check(cudaMemcpy(host, device, n * sizeof(float), cudaMemcpyDeviceToHost));
        unsigned long long count, digest = 1469598103934665603ull;
        check(cudaMemcpyFromSymbol(&count, launches, sizeof count));
        for (int i = 0; i < n; i += 97) digest = (digest ^ ((uint32_t *)host)[i]) * 1099511628211ull;
        printf("step %d %016llx-%llu\n", step, digest, count);
        fflush(stdout);
        usleep((useconds_t)(pause * 1e6));
    }
    puts("done");
}
