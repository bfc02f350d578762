// Algorithms over blocks: CUB, barriers, pipelines, atomics of the standard library, matrix fragments.
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/atomic>
#include <cuda/std/complex>
#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void br(int*o,const int*x){ using R=cub::BlockReduce<int,128>; __shared__ R::TempStorage t; int s=R(t).Sum(x[threadIdx.x]); if(!threadIdx.x)o[0]=s; using S=cub::BlockScan<int,128>; __shared__ S::TempStorage t2; int v=x[threadIdx.x],w; S(t2).InclusiveSum(v,w); o[1+threadIdx.x]=w; }
extern "C" __global__ void rs(unsigned*o,const unsigned*x){ using R=cub::BlockRadixSort<unsigned,128,4>; __shared__ R::TempStorage t; unsigned k[4]; for(int i=0;i<4;i++)k[i]=x[threadIdx.x*4+i]; R(t).Sort(k); for(int i=0;i<4;i++)o[threadIdx.x*4+i]=k[i]; }
extern "C" __global__ void bar(int*o,const int*x){ __shared__ cuda::barrier<cuda::thread_scope_block> b; __shared__ alignas(128) int s[128]; if(!threadIdx.x) init(&b,blockDim.x); __syncthreads(); cuda::memcpy_async(s+threadIdx.x,x+threadIdx.x,4,b); b.arrive_and_wait(); o[threadIdx.x]=s[127-threadIdx.x]; }
extern "C" __global__ void pipe(int*o,const int*x){ __shared__ int s[2][128]; auto p=cuda::make_pipeline(); for(int i=0;i<4;i++){ p.producer_acquire(); cuda::memcpy_async(&s[i&1][threadIdx.x],x+i*128+threadIdx.x,4,p); p.producer_commit(); p.consumer_wait(); o[i*128+threadIdx.x]=s[i&1][threadIdx.x]*2; p.consumer_release(); } }
extern "C" __global__ void atm(int*a,unsigned long long*b,float*f){ cuda::atomic_ref<int,cuda::thread_scope_device> r(*a); r.fetch_add(1,cuda::memory_order_relaxed); r.fetch_max(3); int e=1; r.compare_exchange_strong(e,2); cuda::atomic_ref<float> g(*f); g.fetch_add(1.f); r.store(r.load(cuda::memory_order_acquire)+1,cuda::memory_order_release); cuda::atomic_thread_fence(cuda::memory_order_seq_cst); auto z=cuda::std::complex<float>(1,2)*cuda::std::complex<float>(3,*f); f[1]=z.real(); }
extern "C" __global__ void wm(float*o,const __half*x){ using namespace nvcuda::wmma; fragment<matrix_a,16,16,16,__half,row_major> a; fragment<matrix_b,16,16,16,__half,col_major> b; fragment<accumulator,16,16,16,float> c; fill_fragment(c,0.f); load_matrix_sync(a,x,16); load_matrix_sync(b,x,16); mma_sync(c,a,b,c); for(int i=0;i<c.num_elements;i++)c.x[i]*=2; store_matrix_sync(o,c,16,mem_row_major); }
