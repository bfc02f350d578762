// Arithmetic and conversions of every width, one result a column.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void halves(const __half *a, const __half *b, const __half *c, __half *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half *o = out + 8 * i;
    o[0] = a[i] + b[i]; o[1] = a[i] - b[i]; o[2] = a[i] * b[i]; o[3] = __hfma(a[i], b[i], c[i]);
    o[4] = __hneg(a[i]); o[5] = __hmax(a[i], b[i]); o[6] = __habs(a[i]); o[7] = a[i] < b[i] ? a[i] : c[i];
}

extern "C" __global__ void brains(const __nv_bfloat16 *a, const __nv_bfloat16 *b, const __nv_bfloat16 *c, __nv_bfloat16 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat16 *o = out + 4 * i;
    o[0] = a[i] + b[i]; o[1] = a[i] * b[i]; o[2] = __hfma(a[i], b[i], c[i]); o[3] = __hmin(a[i], b[i]);
}

extern "C" __global__ void pairs(const __half2 *a, const __half2 *b, __half2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __hfma2(a[i], __lowhigh2highlow(b[i]), __hsub2(a[i], b[i]));
}

struct Converted {
    __half half; __nv_bfloat16 brain; signed char byte; unsigned short word;
    int nearest, toward_zero, down, up; long long wide; unsigned natural; float narrow, upward; double back;
};

extern "C" __global__ void conversions(const double *x, Converted *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i];
    float f = (float)v;
    Converted &o = out[i];
    o.half = __float2half(f); o.brain = __float2bfloat16(f); o.byte = (signed char)(int)v; o.word = (unsigned short)(long long)v;
    o.nearest = __double2int_rn(v); o.toward_zero = (int)v; o.down = __float2int_rd(f); o.up = __double2int_ru(v);
    o.wide = __double2ll_rn(v * 1e6); o.natural = (unsigned)fabs(v); o.narrow = f; o.upward = __double2float_ru(v);
    o.back = (double)__half2float(o.half) + (double)__bfloat162float(o.brain);
}

extern "C" __global__ void doubles(const double *a, const double *b, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double *o = out + 8 * i;
    o[0] = a[i] + b[i]; o[1] = a[i] * b[i]; o[2] = a[i] / b[i]; o[3] = fma(a[i], b[i], a[i]);
    o[4] = sqrt(fabs(a[i])); o[5] = fmin(a[i], b[i]); o[6] = trunc(a[i]); o[7] = fmod(a[i], b[i]);
}

extern "C" __global__ void singles(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float *o = out + 8 * i;
    o[0] = __fadd_rn(a[i], b[i]); o[1] = __fmul_rn(a[i], b[i]); o[2] = __fdiv_rn(a[i], b[i]); o[3] = __fsqrt_rn(fabsf(a[i]));
    o[4] = fmaxf(a[i], b[i]); o[5] = rintf(a[i]); o[6] = copysignf(a[i], b[i]); o[7] = ceilf(b[i]);
}

extern "C" __global__ void functions(const double *x, double *out, float *out32, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i], *o = out + 8 * i;
    float f = (float)v, *p = out32 + 8 * i;
    o[0] = sin(v); o[1] = exp(v); o[2] = log(fabs(v) + 1); o[3] = pow(fabs(v), 1.5); o[4] = tanh(v); o[5] = cbrt(v); o[6] = atan2(v, 2.); o[7] = 1 / sqrt(v * v + 1);
    p[0] = sinf(f); p[1] = expf(f); p[2] = logf(fabsf(f) + 1); p[3] = powf(fabsf(f), 1.5f); p[4] = tanhf(f); p[5] = cbrtf(f); p[6] = atan2f(f, 2); p[7] = rsqrtf(f * f + 1);
}

extern "C" __global__ void integers(const long long *a, const long long *b, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long *o = out + 12 * i, x = a[i], y = b[i];
    int s = (int)x, t = (int)y;
    unsigned shift = (unsigned)y & 63;
    o[0] = x / y; o[1] = x % y; o[2] = __mul64hi(x, y); o[3] = x * y; o[4] = x >> shift; o[5] = (unsigned long long)x >> shift;
    o[6] = __popcll(x); o[7] = __clz(s); o[8] = s / (t | 1); o[9] = __mulhi(s, t); o[10] = __brev(s); o[11] = min(s, t) ^ (short)max(s, t);
}
