/* A stand-in for CRIU's plugin for AMD GPUs: it takes the device whose name begins as the real one's by noting its path
 * in a file beside CRIU's images, and brings it back from there. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int criu_get_image_dir(void);

static const char device[] = "/dev/kfd";

static int note(int id, int flags)
{
    char name[64];
    snprintf(name, sizeof name, "amdgpu-standin-%d.img", id);
    return openat(criu_get_image_dir(), name, flags, 0600);
}

int cr_plugin_init(int stage)
{
    (void)stage;
    return 0;
}

void cr_plugin_fini(int stage, int result)
{
    (void)stage;
    (void)result;
}

int cr_plugin_dump_file(int fd, int id)
{
    char link[64], path[256] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0 || strncmp(path, device, strlen(device)) != 0)
        return -ENOTSUP;
    int out = note(id, O_WRONLY | O_CREAT | O_EXCL);
    if (out < 0 || write(out, path, strlen(path)) != (ssize_t)strlen(path))
        return -EIO;
    close(out);
    return 0;
}

int cr_plugin_restore_file(int id)
{
    char path[256] = "";
    int in = note(id, O_RDONLY);
    if (in < 0 || read(in, path, sizeof path - 1) <= 0)
        return -ENOTSUP;
    close(in);
    return open(path, O_RDWR);
}
