// The other half.
extern "C" __device__ float weights[4] = {1.5f, -2.f, 0.25f, 8.f};
static __device__ int calls_made = 7;

extern "C" __device__ float weigh(float x, int kind) { return kind == 3 ? sqrtf(fabsf(x)) : x * weights[kind] + calls_made; }
