/* A forked child has no GPU; the parent is not disturbed by it; a child that starts a program of its own gets one. */
#include <sys/wait.h>

#include "cuda_min.h"

static int ended(pid_t child) {
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[2], "again")) {
        open_device();
        return 42;
    }
    /* Forked before the first call: as if started alone. */
    pid_t early = fork();
    if (!early) {
        open_device();
        _exit(7);
    }
    EXPECT(ended(early) == 7);

    CUdeviceptr device;
    open_device();
    CHECK(cuMemAlloc_v2(&device, 1 << 20));
    CHECK(cuMemsetD8_v2(device, 4, 1 << 20));
    pause_here(argv);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (!child) {
            EXPECT_CODE(cuInit(0), NOT_INITIALIZED);
            EXPECT_CODE(cuCtxSynchronize(), NOT_INITIALIZED);
            EXPECT_CODE(cuMemFree_v2(device), NOT_INITIALIZED);
            _exit(9);
        }
        EXPECT(ended(child) == 9);
        CHECK(cuCtxSynchronize());
    }
    pid_t child = fork();
    if (!child) execl("/proc/self/exe", argv[0], "/", "again", (char *)0);
    EXPECT(ended(child) == 42);
    unsigned char back[16];
    CHECK(cuMemcpyDtoH_v2(back, device + 1000, 16));
    EXPECT(back[0] == 4 && back[15] == 4);
    return ok();
}
