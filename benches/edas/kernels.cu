// The kernels of functions that need no framework.

// A layer: y = max(0, W x), one thread a row.
extern "C" __global__ void dense(const float *weights, const float *x, float *y, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    float sum = 0;
    for (int column = 0; column < n; column++) sum += weights[(long)column * n + row] * x[column];
    y[row] = fmaxf(sum, 0.0f);
}

// A step of the lattice Boltzmann method, D3Q19 with one relaxation time, on a torus of side³ cells: each cell pulls what its
// neighbours send, and relaxes. Solid cells send back what comes.
__constant__ const int CX[19] = {0, 1, -1, 0, 0, 0, 0, 1, -1, 1, -1, 1, -1, 1, -1, 0, 0, 0, 0};
__constant__ const int CY[19] = {0, 0, 0, 1, -1, 0, 0, 1, -1, -1, 1, 0, 0, 0, 0, 1, -1, 1, -1};
__constant__ const int CZ[19] = {0, 0, 0, 0, 0, 1, -1, 0, 0, 0, 0, 1, -1, -1, 1, 1, -1, -1, 1};
__constant__ const float SHARE[19] = {1 / 3.f, 1 / 18.f, 1 / 18.f, 1 / 18.f, 1 / 18.f, 1 / 18.f, 1 / 18.f, 1 / 36.f, 1 / 36.f, 1 / 36.f,
                                      1 / 36.f, 1 / 36.f, 1 / 36.f, 1 / 36.f, 1 / 36.f, 1 / 36.f, 1 / 36.f, 1 / 36.f, 1 / 36.f};
__constant__ const int BACK[19] = {0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15, 18, 17};

extern "C" __global__ void lattice(const float *from, const unsigned char *solid, float *to, int side, float relaxation) {
    int cells = side * side * side, cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= cells) return;
    int x = cell % side, y = cell / side % side, z = cell / (side * side);
    float f[19], density = 0, ux = 0, uy = 0, uz = 0;
#pragma unroll
    for (int q = 0; q < 19; q++) {
        int px = (x - CX[q] + side) % side, py = (y - CY[q] + side) % side, pz = (z - CZ[q] + side) % side;
        f[q] = from[(long)q * cells + (pz * side + py) * side + px];
        density += f[q];
        ux += CX[q] * f[q];
        uy += CY[q] * f[q];
        uz += CZ[q] * f[q];
    }
    if (solid[cell]) {
#pragma unroll
        for (int q = 0; q < 19; q++) to[(long)q * cells + cell] = f[BACK[q]];
        return;
    }
    ux /= density;
    uy /= density;
    uz /= density;
    float square = ux * ux + uy * uy + uz * uz;
#pragma unroll
    for (int q = 0; q < 19; q++) {
        float along = CX[q] * ux + CY[q] * uy + CZ[q] * uz;
        float balanced = SHARE[q] * density * (1 + 3 * along + 4.5f * along * along - 1.5f * square);
        to[(long)q * cells + cell] = f[q] + relaxation * (balanced - f[q]);
    }
}

// Q of an image that is reconstructed from samples at any places k: at each point, the sum of |phi|² exp(2 pi i k x).
extern "C" __global__ void fourier(const float *places, const float *samples, float *real, float *imaginary, int points, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= points) return;
    float x = places[at], y = places[points + at], z = places[2 * points + at], re = 0, im = 0;
    for (int k = 0; k < count; k++) {
        float angle = 6.2831853f * (samples[k] * x + samples[count + k] * y + samples[2 * count + k] * z);
        re += samples[3 * count + k] * __cosf(angle);
        im += samples[3 * count + k] * __sinf(angle);
    }
    real[at] = re;
    imaginary[at] = im;
}

// How many pairs of a point of one set and one of the other are how far apart: the cosine of the angle between them falls into
// one of `bins` ranges, whose upper edges descend.
extern "C" __global__ void pairs(const float *ones, const float *others, const float *edges, unsigned *counts, int n, int bins) {
    __shared__ unsigned mine[64];
    if (threadIdx.x < 64) mine[threadIdx.x] = 0;
    __syncthreads();
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) {
        float x = ones[at], y = ones[n + at], z = ones[2 * n + at];
        for (int other = 0; other < n; other++) {
            float cosine = x * others[other] + y * others[n + other] + z * others[2 * n + other];
            int low = 0, high = bins - 1;
            while (low < high) {
                int middle = (low + high) / 2;
                if (cosine >= edges[middle]) high = middle; else low = middle + 1;
            }
            atomicAdd(&mine[low], 1u);
        }
    }
    __syncthreads();
    if (threadIdx.x < bins) atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}
