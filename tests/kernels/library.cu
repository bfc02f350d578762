// What the toolkit's headers make of PTX: CUB, the standard library's barriers and atomics, groups, matrix fragments.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_fp16.h>
#include <mma.h>
namespace cg = cooperative_groups;

constexpr int BLOCK = 128, EACH = 4;

extern "C" __global__ void collective(const int *x, int *sum, int *running, unsigned *sorted) {
    using Reduce = cub::BlockReduce<int, BLOCK>;
    using Scan = cub::BlockScan<int, BLOCK>;
    using Sort = cub::BlockRadixSort<unsigned, BLOCK, EACH>;
    __shared__ union { Reduce::TempStorage reduce; Scan::TempStorage scan; Sort::TempStorage sort; } room;
    int v = x[threadIdx.x], w = Reduce(room.reduce).Sum(v);
    if (threadIdx.x == 0) *sum = w;
    __syncthreads();
    Scan(room.scan).InclusiveSum(v, running[threadIdx.x]);
    __syncthreads();
    unsigned keys[EACH];
    for (int i = 0; i < EACH; i++) keys[i] = (unsigned)x[threadIdx.x * EACH + i];
    Sort(room.sort).Sort(keys);
    for (int i = 0; i < EACH; i++) sorted[threadIdx.x * EACH + i] = keys[i];
}

extern "C" __global__ void copied(const int *x, int *reversed, int *doubled) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ int part[2][BLOCK];
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(&part[0][threadIdx.x], x + threadIdx.x, sizeof(int), barrier);
    barrier.arrive_and_wait();
    reversed[threadIdx.x] = part[0][BLOCK - 1 - threadIdx.x];
    __syncthreads();
    auto pipeline = cuda::make_pipeline();
    for (int i = 0; i < EACH; i++) {
        int *mine = &part[i & 1][threadIdx.x];
        pipeline.producer_acquire();
        cuda::memcpy_async(mine, x + i * BLOCK + threadIdx.x, sizeof(int), pipeline);
        pipeline.producer_commit();
        pipeline.consumer_wait();
        doubled[i * BLOCK + threadIdx.x] = *mine * 2;
        pipeline.consumer_release();
    }
}

extern "C" __global__ void shared_counts(int *count, float *sum, int *most) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cuda::atomic_ref<int, cuda::thread_scope_device> counter(*count), largest(*most);
    counter.fetch_add(1, cuda::memory_order_relaxed);
    largest.fetch_max(i * 7 % 1000, cuda::memory_order_acq_rel);
    cuda::atomic_ref<float, cuda::thread_scope_device>(*sum).fetch_add(0.5f);
}

extern "C" __global__ void groups(const int *x, int *out) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int rank = block.thread_rank(), v = x[rank], *o = out + 6 * rank;
    o[0] = cg::reduce(tile, v, cg::plus<int>());
    o[1] = cg::inclusive_scan(tile, v);
    o[2] = cg::labeled_partition(tile, v % 3).size();
    o[3] = o[4] = 0;
    if (v & 1) {
        auto odd = cg::coalesced_threads();
        o[3] = odd.size() * 100 + odd.thread_rank();
        o[4] = cg::reduce(odd, v, cg::greater<int>());
    }
    o[5] = tile.meta_group_rank();
}

extern "C" __global__ void fragments(const __half *a, const __half *b, float *c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __half, row_major> left;
    fragment<matrix_b, 16, 16, 16, __half, col_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 1.f);
    load_matrix_sync(left, a, 16);
    load_matrix_sync(right, b, 16);
    mma_sync(sum, left, right, sum);
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= 2;
    store_matrix_sync(c, sum, 16, mem_row_major);
}
