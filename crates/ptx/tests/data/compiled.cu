// Compiled by NVRTC 13.0 for compute_90 with --device-int128; nothing of a library is in it.
extern "C" __device__ int printf(const char*,...);
struct P { float a[5]; double d; short s; };
__device__ float tab[4] = {1.f,2.f,3.f,4.f};
__constant__ int ctab[8] = {1,2,3,4,5,6,7,8};
__device__ int counter;
typedef float (*fn)(float);
__device__ __noinline__ float f1(float x){ return x*2.f+tab[1]; }
__device__ __noinline__ float f2(float x){ return x*x/(x+3.f)+sqrtf(x); }
__device__ fn table[2] = {f1,f2};
__device__ __noinline__ int fib(int n){ return n<2?n:fib(n-1)+fib(n-2); }
extern "C" __global__ void calls(float*o,const float*x,int n,P p){ int i=blockIdx.x*blockDim.x+threadIdx.x; if(i<n) o[i]=table[i&1](x[i])+p.a[i%5]+(float)p.d+p.s+ctab[i&7]; }
extern "C" __global__ void recur(int*o){ int i=threadIdx.x; o[i]=fib(i%12); }
extern "C" __global__ void red(float*o,const float*x,int n){ __shared__ float s[256]; int t=threadIdx.x; float v=0; for(int i=blockIdx.x*blockDim.x+t;i<n;i+=gridDim.x*blockDim.x) v+=x[i]; s[t]=v; __syncthreads(); for(int k=128;k;k>>=1){ if(t<k) s[t]+=s[t+k]; __syncthreads(); } if(!t) atomicAdd(o,s[0]); }
extern "C" __global__ void warpred(int*o,const int*x){ int v=x[threadIdx.x]; for(int k=16;k;k>>=1) v+=__shfl_xor_sync(~0u,v,k); if(threadIdx.x%32==0) atomicAdd(&counter,v); o[threadIdx.x]=v+__popc(__ballot_sync(~0u,v>3))+__reduce_add_sync(~0u,v); }
extern "C" __global__ void hello(int n){ printf("hi %d %s %5.2f %lld\n",threadIdx.x+n,"str",1.5*threadIdx.x,(long long)n<<40); }
extern "C" __global__ void lock(int*l,int*c){ while(atomicCAS(l,0,1)); *(volatile int*)c=*(volatile int*)c+1; __threadfence(); atomicExch(l,0); }
extern "C" __global__ void dbl(double*o,const double*x){ int i=threadIdx.x; double v=x[i]; o[i]=fma(v,v,floor(v))*sqrt(v+1)/(v+2)+fmin(v,rint(v))-trunc(v*3)*fabs(v-5); }
extern "C" __global__ void ints(long long*o,const long long*x,int m){ int i=threadIdx.x; long long v=x[i]; int sel=(int)(v&7); switch(sel){case 0:v/=m;break;case 1:v%=m;break;case 2:v=__mulhi((int)v,m);break;case 3:v=__mul64hi(v,m);break;case 4:v=__clzll(v);break;case 5:v=__brevll(v);break;case 6:v=__ffsll(v);break;default:v=__byte_perm((int)v,m,0x1234);} o[i]=v; }
extern "C" __global__ void dyn(int*o){ extern __shared__ int s[]; s[threadIdx.x]=threadIdx.x; __syncthreads(); o[threadIdx.x]=s[blockDim.x-1-threadIdx.x]; int local[32]; for(int i=0;i<32;i++) local[i]=i*threadIdx.x; int a=0; for(int i=0;i<32;i++) a+=local[(i*7+o[threadIdx.x])&31]; o[threadIdx.x]+=a; }
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
    out[4 * i] = a * b; out[4 * i + 1] = -a; out[4 * i + 2] = a >> 3; out[4 * i + 3] = a - b;
}
// Two copies in flight while the previous part is worked on, as the hardware has it.
extern "C" __global__ void copies(int *out, const int *x) {
    __shared__ int parts[2][128];
    unsigned at = (unsigned)__cvta_generic_to_shared(&parts[0][threadIdx.x]);
    for (int i = 0; i < 4; i++) {
        const int *from = x + i * 128 + threadIdx.x;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at + (i & 1) * 512), "l"(from) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        out[i * 128 + threadIdx.x] = parts[i & 1][127 - threadIdx.x] * 2;
        __syncthreads();
    }
}
// A barrier in shared memory: arrive, and wait for the phase.
extern "C" __global__ void phases(int *out, const int *x) {
    __shared__ unsigned long long barrier;
    __shared__ int values[128];
    unsigned at = (unsigned)__cvta_generic_to_shared(&barrier);
    if (!threadIdx.x) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at), "r"(blockDim.x) : "memory");
    __syncthreads();
    for (int phase = 0; phase < 4; phase++) {
        unsigned long long state;
        values[threadIdx.x] = x[threadIdx.x] + phase;
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
        for (int done = 0; !done;)
            asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }" : "=r"(done) : "r"(at), "l"(state) : "memory");
        out[phase * 128 + threadIdx.x] = values[(threadIdx.x + 37) % 128];
        __syncthreads();
    }
}
