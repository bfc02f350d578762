// Mathematical functions, cooperative groups, virtual functions and wide integers.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;

extern "C" __global__ void single(float *out, const float *x) {
    int i = threadIdx.x;
    float v = x[i], *o = out + 32 * i;
    int e;
    o[0] = tanf(v); o[1] = asinf(v / 40); o[2] = atan2f(v, 3); o[3] = sinhf(v / 4); o[4] = erff(v);
    o[5] = lgammaf(v + 20); o[6] = cbrtf(v); o[7] = powf(fabsf(v), 2.3f); o[8] = fmodf(v, 1.7f);
    o[9] = remainderf(v, 3.f); o[10] = exp2f(v); o[11] = log10f(fabsf(v) + 1); o[12] = hypotf(v, 2);
    o[13] = ldexpf(v, 3); o[14] = frexpf(v, &e) + e; o[15] = roundf(v); o[16] = rintf(v); o[17] = floorf(v);
    o[18] = log1pf(fabsf(v)); o[19] = expm1f(v); o[20] = sinf(v * 1000); o[21] = __half2float(__float2half(v));
    o[22] = 1 / sqrtf(fabsf(v) + 1); o[23] = lroundf(v);
}

extern "C" __global__ void twice(double *out, const double *x) {
    int i = threadIdx.x;
    double v = x[i], *o = out + 32 * i;
    int e;
    o[0] = tan(v); o[1] = asin(v / 40); o[2] = atan2(v, 3); o[3] = sinh(v / 4); o[4] = erf(v);
    o[5] = lgamma(v + 20); o[6] = cbrt(v); o[7] = pow(fabs(v), 2.3); o[8] = fmod(v, 1.7);
    o[9] = remainder(v, 3.); o[10] = exp2(v); o[11] = log10(fabs(v) + 1); o[12] = hypot(v, 2.);
    o[13] = ldexp(v, 3); o[14] = frexp(v, &e) + e; o[15] = round(v); o[16] = rint(v); o[17] = floor(v);
    o[18] = log1p(fabs(v)); o[19] = expm1(v); o[20] = sin(v * 1000); o[21] = (double)(float)v;
    o[22] = 1 / sqrt(fabs(v) + 1); o[23] = llround(v);
}

extern "C" __global__ void groups(int *out, const int *x) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int rank = block.thread_rank(), v = x[rank], *o = out + 8 * rank;
    o[0] = cg::reduce(tile, v, cg::plus<int>());
    o[1] = cg::inclusive_scan(tile, v);
    o[2] = tile.shfl_down(v, 3);
    if (v & 1) {
        auto odd = cg::coalesced_threads();
        o[3] = odd.size() * 100 + odd.thread_rank();
        o[4] = cg::reduce(odd, v, cg::greater<int>());
    }
    block.sync();
    o[5] = tile.any(v > 50);
    o[6] = cg::labeled_partition(tile, v % 3).size();
    o[7] = tile.meta_group_rank();
}

extern "C" __global__ void barrier_of_grid(int *out, int *count) {
    auto grid = cg::this_grid();
    for (int round = 0; round < 3; round++) {
        atomicAdd(count, 1);
        grid.sync();
        if (grid.thread_rank() == 0) out[round] = *(volatile int *)count;
        grid.sync();
    }
}

struct Shape { __device__ virtual int area(int x) { return x; } __device__ virtual ~Shape() {} };
struct Square : Shape { __device__ int area(int x) override { return x * x; } };
extern "C" __global__ void dynamic_dispatch(int *out) {
    int i = threadIdx.x;
    Shape *shape = i % 3 ? new Shape() : new Square();
    out[i] = shape->area(i);
    delete shape;
}

extern "C" __global__ void wide(__int128 *out, const __int128 *x) {
    int i = threadIdx.x;
    __int128 a = x[2 * i], b = x[2 * i + 1];
    out[4 * i] = a * b; out[4 * i + 1] = a / b; out[4 * i + 2] = a >> 3; out[4 * i + 3] = a - b;
}
