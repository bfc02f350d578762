/* Arrays, textures and surfaces: what is wrong gives the driver's codes, and leaves nothing behind. */
#include "cuda_min.h"

typedef struct array *CUarray;
typedef struct mipmapped *CUmipmappedArray;

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} Plain;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} Solid;

typedef struct {
    int kind;
    union {
        void *array;
        struct { CUdeviceptr address; int format; unsigned channels; size_t bytes; } linear;
        struct { CUdeviceptr address; int format; unsigned channels; size_t width, height, pitch; } pitched;
        int reserved[32];
    } of;
    unsigned flags;
} Resource;

typedef struct {
    int modes[3], filter;
    unsigned flags, anisotropy;
    int mipmap_filter;
    float bias, least, most, border[4];
    int reserved[12];
} Sampler;

typedef struct {
    int format;
    size_t width, height, depth;
    unsigned first_level, last_level, first_layer, last_layer, reserved[16];
} Seen;

typedef struct {
    size_t from_x, from_y;
    int from_kind;
    const void *from_host;
    CUdeviceptr from_device;
    CUarray from_array;
    size_t from_pitch, to_x, to_y;
    int to_kind;
    void *to_host;
    CUdeviceptr to_device;
    CUarray to_array;
    size_t to_pitch, width, height;
} Copy;

CUresult cuArrayCreate_v2(CUarray *, const Plain *);
CUresult cuArray3DCreate_v2(CUarray *, const Solid *);
CUresult cuArrayGetDescriptor_v2(Plain *, CUarray);
CUresult cuArray3DGetDescriptor_v2(Solid *, CUarray);
CUresult cuArrayDestroy(CUarray);
CUresult cuArrayGetPlane(CUarray *, CUarray, unsigned);
CUresult cuArrayGetSparseProperties(void *, CUarray);
CUresult cuArrayGetMemoryRequirements(void *, CUarray, CUdevice);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *, const Solid *, unsigned);
CUresult cuMipmappedArrayGetLevel(CUarray *, CUmipmappedArray, unsigned);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray);
CUresult cuMemcpyHtoA_v2(CUarray, size_t, const void *, size_t);
CUresult cuMemcpyAtoH_v2(void *, CUarray, size_t, size_t);
CUresult cuMemcpyAtoA_v2(CUarray, size_t, CUarray, size_t, size_t);
CUresult cuMemcpyDtoA_v2(CUarray, size_t, CUdeviceptr, size_t);
CUresult cuMemcpyAtoD_v2(CUdeviceptr, CUarray, size_t, size_t);
CUresult cuTexObjectCreate(unsigned long long *, const Resource *, const Sampler *, const Seen *);
CUresult cuTexObjectDestroy(unsigned long long);
CUresult cuTexObjectGetResourceDesc(Resource *, unsigned long long);
CUresult cuTexObjectGetTextureDesc(Sampler *, unsigned long long);
CUresult cuTexObjectGetResourceViewDesc(Seen *, unsigned long long);
CUresult cuSurfObjectCreate(unsigned long long *, const Resource *);
CUresult cuSurfObjectDestroy(unsigned long long);
CUresult cuSurfObjectGetResourceDesc(Resource *, unsigned long long);
CUresult cuMemcpy3DBatchAsync_v2(size_t, void *, unsigned long long, CUstream);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

typedef struct {
    int kind;
    uint64_t address;
    size_t sizes[3];
} Operand;

typedef struct {
    Operand from, to;
    size_t extent[3];
    int order;
    unsigned flags;
} Box;

enum { U8 = 1, FLOAT = 32, NV12 = 0xb0, HOST = 1, DEVICE = 2, ARRAY = 3, SURFACE = 2, SPARSE = 0x40 };

static void arrays(void) {
    CUarray array, other;
    Plain plain = {64, 32, FLOAT, 1};
    EXPECT_CODE(cuArrayCreate_v2(0, &plain), INVALID_VALUE);
    EXPECT_CODE(cuArrayCreate_v2(&array, 0), INVALID_VALUE);
    EXPECT_CODE(cuArrayCreate_v2(&array, &(Plain){0, 32, FLOAT, 1}), INVALID_VALUE);
    EXPECT_CODE(cuArrayCreate_v2(&array, &(Plain){64, 32, 77, 1}), INVALID_VALUE);
    EXPECT_CODE(cuArrayCreate_v2(&array, &(Plain){64, 32, FLOAT, 3}), INVALID_VALUE);
    EXPECT_CODE(cuArrayCreate_v2(&array, &(Plain){(size_t)1 << 40, 32, FLOAT, 1}), INVALID_VALUE);
    EXPECT_CODE(cuArrayCreate_v2(&array, &(Plain){64, 32, NV12, 1}), NOT_SUPPORTED);
    EXPECT_CODE(cuArray3DCreate_v2(&array, &(Solid){8, 8, 8, FLOAT, 1, SPARSE}), NOT_SUPPORTED);
    EXPECT_CODE(cuArray3DCreate_v2(&array, &(Solid){8, 8, 8, FLOAT, 1, 0x4000}), INVALID_VALUE);
    EXPECT_CODE(cuArray3DCreate_v2(&array, &(Solid){8, 0, 8, FLOAT, 1, 0}), INVALID_VALUE);
    EXPECT_CODE(cuArray3DCreate_v2(&array, &(Solid){8, 9, 6, FLOAT, 1, 4}), INVALID_VALUE);

    CHECK(cuArrayCreate_v2(&array, &plain));
    Solid solid;
    CHECK(cuArray3DGetDescriptor_v2(&solid, array));
    EXPECT(solid.width == 64 && solid.height == 32 && solid.depth == 0 && solid.format == FLOAT && solid.flags == 0);
    EXPECT_CODE(cuArrayGetDescriptor_v2(0, array), INVALID_VALUE);
    EXPECT_CODE(cuArrayGetPlane(&other, array, 0), INVALID_VALUE);
    EXPECT_CODE(cuArrayGetSparseProperties(&solid, array), INVALID_VALUE);
    EXPECT_CODE(cuArrayGetMemoryRequirements(&solid, array, 0), INVALID_VALUE);

    /* Copies that leave the array, or cut an element. */
    static float bytes[64 * 32], back[64 * 32];
    for (int n = 0; n < 64 * 32; n++) bytes[n] = n;
    Copy copy = {.from_kind = HOST, .from_host = bytes, .from_pitch = 256, .to_kind = ARRAY, .to_array = array, .width = 256, .height = 32};
    CHECK(cuMemcpy2D_v2(&copy));
    copy.to_y = 1;
    EXPECT_CODE(cuMemcpy2D_v2(&copy), INVALID_VALUE);
    copy.height = 31;
    CHECK(cuMemcpy2D_v2(&copy));
    copy.to_x = 4;
    EXPECT_CODE(cuMemcpy2D_v2(&copy), INVALID_VALUE);
    copy.to_x = 2, copy.width = 8;
    EXPECT_CODE(cuMemcpy2D_v2(&copy), INVALID_VALUE);
    copy.to_x = 0, copy.to_array = (CUarray)0x40;
    EXPECT_CODE(cuMemcpy2D_v2(&copy), INVALID_HANDLE);
    copy.to_array = array, copy.from_host = 0;
    EXPECT_CODE(cuMemcpy2D_v2(&copy), INVALID_VALUE);
    Copy out = {.from_kind = ARRAY, .from_array = array, .to_kind = HOST, .to_host = back, .to_pitch = 256, .width = 256, .height = 32};
    CHECK(cuMemcpy2D_v2(&out));
    EXPECT(!memcmp(back, bytes, 256) && !memcmp(back + 64, bytes, 256 * 31));
    EXPECT_CODE(cuMemcpyHtoA_v2(array, 0, bytes, 256), INVALID_VALUE);

    CHECK(cuArrayCreate_v2(&other, &(Plain){100, 0, U8, 1}));
    CHECK(cuMemcpyHtoA_v2(other, 10, "0123456789", 10));
    EXPECT_CODE(cuMemcpyHtoA_v2(other, 95, "0123456789", 10), INVALID_VALUE);
    EXPECT_CODE(cuMemcpyHtoA_v2(other, (size_t)-1, "0123456789", 2), INVALID_VALUE);
    CHECK(cuMemcpyAtoA_v2(other, 50, other, 12, 5));
    CUdeviceptr device;
    CHECK(cuMemAlloc_v2(&device, 100));
    CHECK(cuMemcpyAtoD_v2(device, other, 51, 4));
    CHECK(cuMemcpyDtoA_v2(other, 90, device, 4));
    char text[5] = "";
    CHECK(cuMemcpyAtoH_v2(text, other, 90, 4));
    EXPECT(!strcmp(text, "3456"));
    CHECK(cuMemFree_v2(device));

    CHECK(cuArrayDestroy(other));
    EXPECT_CODE(cuArrayDestroy(other), INVALID_HANDLE);
    EXPECT_CODE(cuArrayDestroy(0), INVALID_HANDLE);
    EXPECT_CODE(cuArrayGetDescriptor_v2(&plain, other), INVALID_HANDLE);
    EXPECT_CODE(cuMemcpyHtoA_v2(other, 0, bytes, 4), INVALID_HANDLE);
    CHECK(cuArrayDestroy(array));
}

/* Boxes of elements: memory to an array, between arrays, and back to rows of another length. */
static void batches(void) {
    enum { POINTER = 1, IN_ARRAY = 2 };
    CUarray array, other;
    CUstream stream;
    CUdeviceptr device;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAlloc_v2(&device, 4096));
    CHECK(cuArrayCreate_v2(&array, &(Plain){16, 8, FLOAT, 1}));
    CHECK(cuArrayCreate_v2(&other, &(Plain){16, 8, FLOAT, 1}));
    float numbers[16 * 8], back[20 * 4] = {0};
    for (int n = 0; n < 16 * 8; n++) numbers[n] = n;
    uint64_t from = (uint64_t)array, to = (uint64_t)other;
    Box boxes[] = {
        {{POINTER, (uint64_t)numbers, {0}}, {IN_ARRAY, from, {0}}, {16, 8, 1}, 1, 0},
        {{IN_ARRAY, from, {2, 3, 0}}, {IN_ARRAY, to, {1, 1, 0}}, {10, 4, 1}, 1, 0},
        {{IN_ARRAY, to, {1, 1, 0}}, {POINTER, device, {20, 4}}, {10, 4, 1}, 1, 0},
    };
    CHECK(cuMemcpy3DBatchAsync_v2(3, boxes, 0, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(back, device, sizeof back));
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 10; x++) EXPECT(back[20 * y + x] == 16 * (y + 3) + x + 2);
    EXPECT_CODE(cuMemcpy3DBatchAsync_v2(0, boxes, 0, stream), INVALID_VALUE);
    EXPECT_CODE(cuMemcpy3DBatchAsync_v2(1, boxes, 1, stream), INVALID_VALUE);
    EXPECT_CODE(cuMemcpy3DBatchAsync_v2(1, boxes, 0, 0), INVALID_VALUE);
    boxes[1].extent[0] = 16;
    EXPECT_CODE(cuMemcpy3DBatchAsync_v2(3, boxes, 0, stream), INVALID_VALUE);
    boxes[1].extent[0] = 0;
    EXPECT_CODE(cuMemcpy3DBatchAsync_v2(3, boxes, 0, stream), INVALID_VALUE);
    boxes[0].to.kind = 9;
    EXPECT_CODE(cuMemcpy3DBatchAsync_v2(1, boxes, 0, stream), INVALID_VALUE);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamDestroy_v2(stream));
    CHECK(cuArrayDestroy(array));
    CHECK(cuArrayDestroy(other));
    CHECK(cuMemFree_v2(device));
}

static void mipmaps(void) {
    CUmipmappedArray whole;
    CUarray level, again;
    Solid solid = {16, 8, 0, FLOAT, 1, 0};
    EXPECT_CODE(cuMipmappedArrayCreate(&whole, &(Solid){0, 8, 0, FLOAT, 1, 0}, 2), INVALID_VALUE);
    CHECK(cuMipmappedArrayCreate(&whole, &solid, 100));
    CHECK(cuMipmappedArrayGetLevel(&level, whole, 4));
    CHECK(cuMipmappedArrayGetLevel(&again, whole, 4));
    EXPECT(level == again);
    EXPECT_CODE(cuMipmappedArrayGetLevel(&again, whole, 5), INVALID_VALUE);
    EXPECT_CODE(cuMipmappedArrayGetLevel(&again, (CUmipmappedArray)level, 0), INVALID_HANDLE);
    EXPECT_CODE(cuArrayDestroy(level), INVALID_HANDLE);
    CHECK(cuArray3DGetDescriptor_v2(&solid, level));
    EXPECT(solid.width == 1 && solid.height == 1);
    CHECK(cuMipmappedArrayDestroy(whole));
    EXPECT_CODE(cuMipmappedArrayDestroy(whole), INVALID_HANDLE);
    EXPECT_CODE(cuArray3DGetDescriptor_v2(&solid, level), INVALID_HANDLE);
}

static void objects(void) {
    CUarray array, written;
    unsigned long long texture = 0, other = 0, surface = 0;
    CHECK(cuArrayCreate_v2(&array, &(Plain){64, 32, FLOAT, 1}));
    CHECK(cuArray3DCreate_v2(&written, &(Solid){64, 32, 0, U8, 4, SURFACE}));
    Resource resource = {.kind = 0, .of.array = array};
    Sampler sampler = {.modes = {1, 1, 1}};
    EXPECT_CODE(cuTexObjectCreate(0, &resource, &sampler, 0), INVALID_VALUE);
    EXPECT_CODE(cuTexObjectCreate(&texture, 0, &sampler, 0), INVALID_VALUE);
    EXPECT_CODE(cuTexObjectCreate(&texture, &resource, 0, 0), INVALID_VALUE);
    EXPECT_CODE(cuTexObjectCreate(&texture, &(Resource){.kind = 9}, &sampler, 0), INVALID_VALUE);
    EXPECT_CODE(cuTexObjectCreate(&texture, &(Resource){.kind = 0, .of.array = (void *)0x40}, &sampler, 0), INVALID_HANDLE);
    EXPECT_CODE(cuTexObjectCreate(&texture, &resource, &(Sampler){.modes = {1, 8, 1}}, 0), INVALID_VALUE);
    CHECK(cuTexObjectCreate(&texture, &resource, &sampler, 0));
    CHECK(cuTexObjectCreate(&other, &(Resource){.kind = 0, .of.array = written}, &sampler, 0));
    EXPECT(texture && other && texture != other);
    Resource found;
    CHECK(cuTexObjectGetResourceDesc(&found, texture));
    EXPECT(found.of.array == array);
    Seen seen = {.format = 0, .width = 64, .height = 32};
    EXPECT_CODE(cuTexObjectGetResourceViewDesc(&seen, texture), INVALID_VALUE);
    CHECK(cuTexObjectGetTextureDesc(&sampler, texture));

    EXPECT_CODE(cuSurfObjectCreate(&surface, &resource), INVALID_VALUE);
    EXPECT_CODE(cuSurfObjectCreate(&surface, &(Resource){.kind = 2}), INVALID_VALUE);
    CHECK(cuSurfObjectCreate(&surface, &(Resource){.kind = 0, .of.array = written}));
    CHECK(cuSurfObjectGetResourceDesc(&found, surface));
    EXPECT(found.of.array == written);
    EXPECT_CODE(cuTexObjectDestroy(surface + 100), INVALID_VALUE);
    EXPECT_CODE(cuSurfObjectDestroy(texture + 100), INVALID_VALUE);

    /* Memory: where it begins and how long its rows are matters. */
    CUdeviceptr device;
    CHECK(cuMemAlloc_v2(&device, 1 << 16));
    Resource linear = {.kind = 2, .of.linear = {device, FLOAT, 1, 1 << 16}};
    CHECK(cuTexObjectCreate(&other, &linear, &sampler, 0));
    CHECK(cuTexObjectDestroy(other));
    linear.of.linear.address += 4;
    EXPECT_CODE(cuTexObjectCreate(&other, &linear, &sampler, 0), INVALID_VALUE);
    linear.of.linear.address = 0;
    EXPECT_CODE(cuTexObjectCreate(&other, &linear, &sampler, 0), INVALID_VALUE);
    Resource pitched = {.kind = 3, .of.pitched = {device, FLOAT, 1, 16, 8, 60}};
    EXPECT_CODE(cuTexObjectCreate(&other, &pitched, &sampler, 0), INVALID_VALUE);
    pitched.of.pitched.pitch = 64;
    EXPECT_CODE(cuTexObjectCreate(&other, &pitched, &sampler, &seen), INVALID_VALUE);
    CHECK(cuTexObjectCreate(&other, &pitched, &sampler, 0));
    CHECK(cuTexObjectDestroy(other));
    CHECK(cuMemFree_v2(device));

    CHECK(cuTexObjectDestroy(texture));
    EXPECT_CODE(cuTexObjectDestroy(texture), INVALID_VALUE);
    EXPECT_CODE(cuTexObjectGetTextureDesc(&sampler, texture), INVALID_VALUE);
    CHECK(cuSurfObjectDestroy(surface));
    CHECK(cuArrayDestroy(array));
    EXPECT_CODE(cuTexObjectCreate(&texture, &resource, &sampler, 0), INVALID_HANDLE);
    CHECK(cuArrayDestroy(written));
}

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    CUarray array;
    EXPECT_CODE(cuArrayCreate_v2(&array, &(Plain){64, 32, FLOAT, 1}), NOT_INITIALIZED);
    CHECK(cuInit(0));
    EXPECT_CODE(cuArrayCreate_v2(&array, &(Plain){64, 32, FLOAT, 1}), INVALID_CONTEXT);
    open_device();
    size_t before, between, after, all;
    CHECK(cuMemGetInfo_v2(&before, &all));
    CHECK(cuArrayCreate_v2(&array, &(Plain){1024, 1024, FLOAT, 1}));
    CHECK(cuMemGetInfo_v2(&between, &all));
    EXPECT(before - between >= 4 << 20);
    CHECK(cuArrayDestroy(array));
    CHECK(cuMemGetInfo_v2(&after, &all));
    EXPECT(after == before);
    arrays();
    batches();
    mipmaps();
    objects();
    /* What is left goes with the context. */
    CHECK(cuArrayCreate_v2(&array, &(Plain){1024, 1024, FLOAT, 1}));
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    EXPECT_CODE(cuArrayDestroy(array), INVALID_HANDLE);
    open_device();
    CHECK(cuMemGetInfo_v2(&after, &all));
    EXPECT(after >= before);
    return ok();
}
