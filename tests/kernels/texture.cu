// Textures and surfaces: points, filters, addresses outside, gathers, levels, formats, boundary modes.

extern "C" __global__ void line(cudaTextureObject_t t, const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1D<float>(t, x[i]);
}

extern "C" __global__ void plane(cudaTextureObject_t t, const float *x, const float *y, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex2D<float>(t, x[i], y[i]);
}

extern "C" __global__ void solid(cudaTextureObject_t t, const float *x, const float *y, const float *z, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex3D<float>(t, x[i], y[i], z[i]);
}

extern "C" __global__ void stack(cudaTextureObject_t t, const float *x, const float *y, const int *layer, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex2DLayered<float>(t, x[i], y[i], layer[i]);
}

extern "C" __global__ void directions(cudaTextureObject_t t, const float *x, const float *y, const float *z, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = texCubemap<float>(t, x[i], y[i], z[i]);
}

extern "C" __global__ void detail(cudaTextureObject_t t, const float *level, float *out, float *sloped, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = tex2DLod<float>(t, 0.5f, 0.5f, level[i]);
    float step = exp2f(level[i]) / 16;
    sloped[i] = tex2DGrad<float>(t, 0.5f, 0.5f, make_float2(step, 0), make_float2(0, step / 2));
}

extern "C" __global__ void gathered(cudaTextureObject_t t, const float *x, const float *y, float4 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex2Dgather<float4>(t, x[i], y[i], 1);
}

extern "C" __global__ void bytes(cudaTextureObject_t t, uchar4 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1D<uchar4>(t, i);
}

extern "C" __global__ void shorts(cudaTextureObject_t t, short2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1D<short2>(t, i);
}

extern "C" __global__ void fractions(cudaTextureObject_t t, float2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1D<float2>(t, i);
}

extern "C" __global__ void wide(cudaTextureObject_t t, float4 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1D<float4>(t, i);
}

extern "C" __global__ void fetched(cudaTextureObject_t t, const int *at, int4 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1Dfetch<int4>(t, at[i]);
}

extern "C" __global__ void turned(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) surf2Dwrite(surf2Dread<short4>(from, x * 8, y), to, y * 8, x);
}

// Coordinates reach beyond the surface.
extern "C" __global__ void bounded(cudaSurfaceObject_t s, const int *x, const int *y, int *zero, int *clamp, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    zero[i] = surf2Dread<int>(s, x[i] * 4, y[i], cudaBoundaryModeZero);
    clamp[i] = surf2Dread<int>(s, x[i] * 4, y[i], cudaBoundaryModeClamp);
}

extern "C" __global__ void outside(cudaSurfaceObject_t s) { surf2Dwrite(1, s, 4 * 1000, 0, cudaBoundaryModeTrap); }
