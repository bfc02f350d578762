// Divergence, calls, tables in constant memory, local arrays, recursion.

struct Rule { int factor; short add; unsigned char shift; double scale; };

__constant__ Rule rules[4];
__constant__ int primes[6] = {2, 3, 5, 7, 11, 13};
__device__ int visits[8];

extern "C" __global__ void collatz(const unsigned *x, int *steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long v = x[i];
    int count = 0;
    while (v != 1) {
        if (v & 1) v = 3 * v + 1; else v >>= 1;
        if (++count > 500) break;
    }
    steps[i] = count;
}

__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int times(int a, int b) { return a * b; }
__device__ __noinline__ int minus(int a, int b) { return a - b; }
typedef int (*Operation)(int, int);
__device__ Operation operations[3] = {add, times, minus};

__device__ __noinline__ long long ackermann(int m, long long n) {
    if (m == 0) return n + 1;
    return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

extern "C" __global__ void calls(const int *x, int *out, long long *deep) {
    int i = threadIdx.x;
    out[i] = operations[(unsigned)x[i] % 3](x[i], i);
    deep[i] = ackermann(i % 3, i % 5);
}

extern "C" __global__ void apply_rules(const int *x, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Rule rule = rules[x[i] & 3];
    out[i] = ((x[i] * rule.factor + rule.add) >> rule.shift) * rule.scale + primes[i % 6];
    atomicAdd(&visits[x[i] & 3], 1);
}

extern "C" __global__ void classify(const int *x, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i];
    switch (v % 9) {
        case 0: v = -v; break;
        case 1: v += 10;
        case 2: v *= 3; break;
        case 3: case 4: for (int k = 0; k < v % 7; k++) v ^= k << k; break;
        case 5: if (v & 16) { out[i] = 1; return; } v = 2; break;
        default: v = v & 1 ? ~v : v >> 1;
    }
    out[i] = v;
}

// Each thread sorts its own row in a local array that it indexes as the data say.
extern "C" __global__ void sort_rows(const int *x, int *out) {
    int row[24], at = threadIdx.x * 24;
    for (int i = 0; i < 24; i++) row[i] = x[at + i];
    for (int i = 1; i < 24; i++) {
        int v = row[i], k = i;
        for (; k && row[k - 1] > v; k--) row[k] = row[k - 1];
        row[k] = v;
    }
    for (int i = 0; i < 24; i++) out[at + i] = row[i];
}

// More dynamic shared memory than a block has without asking for it.
extern "C" __global__ void reverse(const double *x, double *out, int n) {
    extern __shared__ double held[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) held[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = held[n - 1 - i];
}
