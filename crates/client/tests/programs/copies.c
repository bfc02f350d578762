/* Copies of every size class between pageable, pinned, registered and device memory; rows with pitches. */
#include "cuda_min.h"

static unsigned char from[40 << 20], to[40 << 20];

static void round_trip(CUdeviceptr device, size_t bytes, size_t skew) {
    for (size_t i = 0; i < bytes; i++) from[skew + i] = (unsigned char)(i * 31 + bytes);
    memset(to, 0, sizeof to);
    CHECK(cuMemcpyHtoD_v2(device + skew, from + skew, bytes));
    memset(from + skew, 0xee, bytes); /* the bytes were staged: they may change now */
    CHECK(cuMemcpyDtoH_v2(to + 2 * skew, device + skew, bytes));
    for (size_t i = 0; i < bytes; i++) EXPECT(to[2 * skew + i] == (unsigned char)(i * 31 + bytes));
    EXPECT(to[2 * skew + bytes] == 0);
}

struct copy2d {
    size_t src_x, src_y; unsigned src_type; const void *src_host; CUdeviceptr src_device; void *src_array; size_t src_pitch;
    size_t dst_x, dst_y; unsigned dst_type; void *dst_host; CUdeviceptr dst_device; void *dst_array; size_t dst_pitch;
    size_t width, height;
};

int main(int argc, char **argv) {
    (void)argc;
    open_device();
    CUdeviceptr device;
    CHECK(cuMemAlloc_v2(&device, sizeof from));
    pause_here(argv);
    size_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 1 << 20, (1 << 20) + 1, (5 << 20) + 7, 17 << 20, 36 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) round_trip(device, sizes[i], i * 3);

    /* Uploads one after the other, in order, from a buffer that changes at once. */
    CUstream stream;
    CHECK(cuStreamCreate(&stream, 1));
    for (int i = 0; i < 200; i++) {
        memset(from, i, 100000);
        CHECK(cuMemcpyHtoDAsync_v2(device, from, 100000, stream));
    }
    CHECK(cuMemcpyDtoHAsync_v2(to, device, 100000, stream));
    for (int i = 0; i < 100000; i++) EXPECT(to[i] == 199);

    /* A box of 100 rows of 333 bytes, device rows 512 apart. */
    for (int i = 0; i < 100 * 333; i++) from[i] = (unsigned char)(i % 251);
    struct copy2d up = {0, 0, 1, from, 0, 0, 333, 16, 2, 2, 0, device, 0, 512, 333, 100};
    CHECK(cuMemcpy2D_v2(&up));
    struct copy2d down = {16, 2, 2, 0, device, 0, 512, 0, 0, 1, to, 0, 0, 400, 333, 100};
    memset(to, 0xcc, 400 * 100);
    CHECK(cuMemcpy2D_v2(&down));
    for (int y = 0; y < 100; y++)
        for (int x = 0; x < 400; x++) EXPECT(to[400 * y + x] == (x < 333 ? (y * 333 + x) % 251 : 0xcc));

    /* Pinned memory, large and small, is reached where it is. */
    for (size_t bytes = 100; bytes <= 3 << 20; bytes *= 31) {
        unsigned char *pinned;
        CHECK(cuMemHostAlloc((void **)&pinned, bytes, 0));
        memset(pinned, 7, bytes);
        CHECK(cuMemcpyHtoDAsync_v2(device, pinned, bytes, stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemsetD8_v2((CUdeviceptr)pinned, 9, bytes / 2));
        CHECK(cuMemcpyDtoH_v2(to, device, bytes));
        EXPECT(to[0] == 7 && to[bytes - 1] == 7 && pinned[0] == 9 && pinned[bytes - 1] == 7);
        CHECK(cuMemFreeHost(pinned));
    }

    /* Registered memory keeps its contents when it is shared, and when it is given back. */
    unsigned char *own = malloc(1 << 20);
    memset(own, 5, 1 << 20);
    CHECK(cuMemHostRegister_v2(own, 1 << 20, 0));
    CHECK(cuMemcpyHtoD_v2(device, own, 1 << 20));
    CUdeviceptr seen;
    CHECK(cuMemHostGetDevicePointer_v2(&seen, own, 0));
    EXPECT(seen == (CUdeviceptr)own && own[77] == 5);
    CHECK(cuMemsetD8_v2(seen, 6, 1000));
    EXPECT(own[0] == 6 && own[999] == 6 && own[1000] == 5);
    CHECK(cuMemHostUnregister(own));
    EXPECT(own[0] == 6 && own[1000] == 5);
    own[1] = 1;
    free(own);

    /* Unified copies find out themselves. */
    memset(from, 3, 1000);
    CHECK(cuMemcpy(device, (CUdeviceptr)from, 1000));
    CHECK(cuMemcpy((CUdeviceptr)to, device, 1000));
    EXPECT(to[0] == 3 && to[999] == 3);
    return ok();
}
