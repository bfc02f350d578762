/* A driver for tests without a GPU: as much of libcuda and NVML as driver mode asks of them.
 *
 * Like the real one it keeps a program's state in the program's own memory, so that it travels with an image, and its
 * "GPU memory" elsewhere: one number in a file. A checkpoint has a thread of the program map memory, fill it from that
 * number (a quarter of it with zeros), and the file goes; a restore has it check and unmap that memory.
 *
 * In $STANDIN_DIR: gpus    a line for each: number of the UUID (hexadecimal), model, bytes, bytes free
 *                  driver  the driver's version
 *                  used    what NVML says that each process uses
 *                  everywhere   if it is there, NVML says so on each GPU
 *                  plan    lines of STEP ACTION COUNT, met when a step is begun: fail, lie (claim that it worked), hang,
 *                          kill (end the caller), kill-after (do it first)
 *                  kernel  as long as it is there, a kernel that has begun runs; kernel-runs is there then
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { RUNNING, LOCKED, CHECKPOINTED, TAKING = 100, BRINGING };
enum { OK = 0, INVALID_VALUE = 1, NO_DEVICE = 100, ILLEGAL_STATE = 401, NOT_READY = 600, UNKNOWN = 999 };
enum { MOST = 8 };
#ifndef WORDS
#define WORDS (5 << 20)
#endif
#ifndef FILLED
#define FILLED (WORDS / 4 * 3)
#endif

struct gpu {
    unsigned number;
    char model[64];
    unsigned long long bytes, unused;
};

/* What a program carries. */
static volatile struct program {
    uint32_t used, state, busy, gpu;
    uint64_t key;
    uint64_t *saved;
} program;

static void in_directory(char *path, const char *name)
{
    const char *directory = getenv("STANDIN_DIR");
    snprintf(path, 512, "%s/%s", directory ? directory : "/nonexistent", name);
}

static int gpus(struct gpu *out)
{
    char path[512];
    int count = 0;
    in_directory(path, "gpus");
    FILE *file = fopen(path, "r");
    while (file && count < MOST
        && fscanf(file, "%x %63s %llu %llu", &out[count].number, out[count].model, &out[count].bytes, &out[count].unused) == 4)
        count++;
    if (file)
        fclose(file);
    return count;
}

/* Reads or writes the program of another process, by where this library lies in it. While that one runs only the state
 * may be written: it changes the rest itself. */
enum { READ, WRITE, STATE };
static int reach(int pid, struct program *into, int how)
{
    Dl_info here;
    char path[64], line[1024];
    unsigned long base = 0;
    if (!dladdr((void *)&reach, &here))
        return 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "r");
    while (file && !base && fgets(line, sizeof line, file)) {
        char *name = strchr(line, '/');
        if (!name)
            continue;
        name[strcspn(name, "\n")] = 0;
        if (strcmp(name, here.dli_fname) == 0)
            base = strtoul(line, NULL, 16);
    }
    if (file)
        fclose(file);
    if (!base)
        return 0;
    size_t offset = how == STATE ? offsetof(struct program, state) : 0;
    size_t bytes = how == STATE ? sizeof into->state : sizeof *into;
    struct iovec local = { (char *)into + offset, bytes };
    struct iovec remote = { (void *)(base + ((char *)&program - (char *)here.dli_fbase) + offset), bytes };
    ssize_t moved = how == READ ? process_vm_readv(pid, &local, 1, &remote, 1, 0)
                                : process_vm_writev(pid, &local, 1, &remote, 1, 0);
    return moved == (ssize_t)bytes && into->used;
}

static int set_state(int pid, uint32_t state)
{
    return reach(pid, &(struct program){ .used = 1, .state = state }, STATE) ? OK : UNKNOWN;
}

/* Waits for the program's own thread. */
static int reaches(int pid, uint32_t state)
{
    struct program there;
    for (int waited = 0; waited < 20000; waited++, usleep(500)) {
        if (!reach(pid, &there, READ))
            return UNKNOWN;
        if (there.state == state)
            return OK;
    }
    return UNKNOWN;
}

static void memory_path(char *path, uint64_t key)
{
    char name[64];
    snprintf(name, sizeof name, "memory-%llx", (unsigned long long)key);
    in_directory(path, name);
}

static int read_memory(uint64_t key, uint64_t *value)
{
    char path[512];
    memory_path(path, key);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    int whole = read(fd, value, sizeof *value) == sizeof *value;
    close(fd);
    return whole;
}

static void write_memory(uint64_t key, uint64_t value)
{
    char path[512];
    memory_path(path, key);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, &value, sizeof value) != sizeof value)
        abort();
    close(fd);
}

static uint64_t new_key(int pid)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return ((uint64_t)pid << 40) ^ (uint64_t)(now.tv_sec * 1000000000L + now.tv_nsec);
}

/* The action planned for a step, used up by this. */
static void planned(const char *step, char *action)
{
    char path[512], text[4096] = "", left[4096] = "", *rest = text;
    action[0] = 0;
    in_directory(path, "plan");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    flock(fd, LOCK_EX);
    if (read(fd, text, sizeof text - 1) > 0) {
        for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
            char name[32], what[32];
            int count;
            if (sscanf(line, "%31s %31s %d", name, what, &count) != 3 || count < 1)
                continue;
            if (!action[0] && strcmp(name, step) == 0) {
                strcpy(action, what);
                count--;
            }
            snprintf(left + strlen(left), sizeof left - strlen(left), "%s %s %d\n", name, what, count);
        }
        if (ftruncate(fd, 0) == 0 && pwrite(fd, left, strlen(left), 0) < 0)
            abort();
    }
    close(fd);
    if (strcmp(action, "hang") == 0)
        for (;;)
            pause();
    if (strcmp(action, "kill") == 0)
        kill(getpid(), SIGKILL);
}

static int done(const char *action, int code)
{
    if (strcmp(action, "kill-after") == 0)
        kill(getpid(), SIGKILL);
    return code;
}

#define BEGIN(step)                        \
    char action[32];                       \
    planned(step, action);                 \
    if (strcmp(action, "fail") == 0)       \
        return UNKNOWN;                    \
    if (strcmp(action, "lie") == 0)        \
        return OK;                         \
    struct program there;                  \
    if (!reach(pid, &there, READ))            \
        return INVALID_VALUE

/* The thread of the driver's in a program. */
static void *serve(void *nothing)
{
    for (;; usleep(500)) {
        uint32_t state = __atomic_load_n(&program.state, __ATOMIC_SEQ_CST);
        if (state == TAKING) {
            uint64_t value, *memory;
            char path[512];
            memory = mmap(NULL, WORDS * sizeof *memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED || !read_memory(program.key, &value))
                abort();
            for (size_t at = 0; at < WORDS; at++)
                memory[at] = at < FILLED ? value + at : 0;
            program.saved = memory;
            memory_path(path, program.key);
            unlink(path);
            __atomic_store_n(&program.state, CHECKPOINTED, __ATOMIC_SEQ_CST);
        } else if (state == BRINGING) {
            uint64_t *memory = program.saved;
            for (size_t at = 0; at < WORDS; at++)
                if (memory[at] != (at < FILLED ? memory[0] + at : 0))
                    abort();
            program.key = new_key(getpid());
            write_memory(program.key, memory[0]);
            munmap(memory, WORDS * sizeof *memory);
            __atomic_store_n(&program.state, LOCKED, __ATOMIC_SEQ_CST);
        }
    }
    return nothing;
}

/* --- what a program calls --- */

void standin_begin(int index)
{
    struct gpu all[MOST];
    if (index >= gpus(all))
        abort();
    program.gpu = all[index].number;
    program.key = new_key(getpid());
    write_memory(program.key, 0);
    program.used = 1;
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, NULL) != 0)
        abort();
}

/* A kernel lasts as long as there is a file "kernel", and says that it runs by one named "kernel-runs". */
static void run_kernel(void)
{
    char kernel[512], runs[512];
    in_directory(kernel, "kernel");
    in_directory(runs, "kernel-runs");
    for (; access(kernel, F_OK) == 0; usleep(500)) {
        FILE *file = fopen(runs, "w");
        if (file)
            fclose(file);
    }
}

/* A kernel that runs for so long and then counts. */
unsigned long long standin_count(unsigned microseconds)
{
    uint64_t value;
    for (;;) {
        __atomic_store_n(&program.busy, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&program.state, __ATOMIC_SEQ_CST) == RUNNING)
            break;
        __atomic_store_n(&program.busy, 0, __ATOMIC_SEQ_CST);
        usleep(500);
    }
    if (!read_memory(program.key, &value))
        abort();
    if (microseconds)
        usleep(microseconds);
    run_kernel();
    write_memory(program.key, value + 1);
    __atomic_store_n(&program.busy, 0, __ATOMIC_SEQ_CST);
    return value;
}

unsigned standin_gpu(void)
{
    return program.gpu;
}

/* --- libcuda --- */

int cuInit(unsigned flags)
{
    return flags ? INVALID_VALUE : OK;
}

int cuDeviceGetCount(int *count)
{
    struct gpu all[MOST];
    *count = gpus(all);
    return OK;
}

int cuDeviceGet(int *device, int index)
{
    *device = index;
    return OK;
}

int cuDeviceGetName(char *name, int length, int device)
{
    struct gpu all[MOST];
    if (device >= gpus(all))
        return INVALID_VALUE;
    snprintf(name, length, "%s", all[device].model);
    return OK;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    struct gpu all[MOST];
    if (device >= gpus(all))
        return INVALID_VALUE;
    memset(uuid, 0, 16);
    uuid[15] = all[device].number;
    return OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    struct gpu all[MOST];
    if (device >= gpus(all))
        return INVALID_VALUE;
    *bytes = all[device].bytes;
    return OK;
}

int cuGetErrorString(int code, const char **text)
{
    *text = code == UNKNOWN ? "as planned" : "an error of the stand-in";
    return OK;
}

int cuCheckpointProcessGetState(int pid, int *state)
{
    struct program there;
    if (!reach(pid, &there, READ))
        return INVALID_VALUE;
    *state = there.state == TAKING ? LOCKED : there.state == BRINGING ? CHECKPOINTED : there.state;
    return OK;
}

int cuCheckpointProcessLock(int pid, const unsigned *timeout_ms)
{
    unsigned patience = timeout_ms ? *timeout_ms : 0;
    BEGIN("lock");
    if (there.state != RUNNING)
        return ILLEGAL_STATE;
    for (unsigned waited = 0;; waited++) {
        /* Between two kernels of the program, as it would be between two of its calls. */
        if (reach(pid, &there, READ) && !there.busy) {
            if (set_state(pid, LOCKED) != OK)
                return UNKNOWN;
            usleep(2000);
            if (reach(pid, &there, READ) && !there.busy)
                return done(action, OK);
            set_state(pid, RUNNING);
        }
        if (waited >= patience)
            return NOT_READY;
        usleep(1000);
    }
}

int cuCheckpointProcessCheckpoint(int pid, const void *reserved)
{
    (void)reserved;
    BEGIN("checkpoint");
    if (there.state != LOCKED)
        return ILLEGAL_STATE;
    set_state(pid, TAKING);
    return done(action, reaches(pid, CHECKPOINTED));
}

struct pair {
    unsigned char old[16], new[16];
};

int cuCheckpointProcessRestore(int pid, const void *arguments)
{
    BEGIN("restore");
    struct gpu all[MOST];
    const struct pair *pairs = *(const struct pair **)arguments;
    unsigned count = *(const unsigned *)((const char *)arguments + 8);
    int found = 0, here = gpus(all);
    if (there.state != CHECKPOINTED)
        return ILLEGAL_STATE;
    for (unsigned n = 0; n < count; n++) {
        if (pairs[n].old[15] == there.gpu) {
            there.gpu = pairs[n].new[15];
            break;
        }
    }
    for (int n = 0; n < here; n++)
        found |= all[n].number == there.gpu;
    if (!found)
        return NO_DEVICE;
    there.state = BRINGING;
    return reach(pid, &there, WRITE) ? done(action, reaches(pid, LOCKED)) : UNKNOWN;
}

int cuCheckpointProcessUnlock(int pid, const void *reserved)
{
    (void)reserved;
    BEGIN("unlock");
    if (there.state != LOCKED)
        return ILLEGAL_STATE;
    return done(action, set_state(pid, RUNNING));
}

/* --- NVML --- */

int nvmlInit_v2(void)
{
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    struct gpu all[MOST];
    int count = gpus(all);
    unsigned number;
    if (strlen(uuid) < 2 || sscanf(uuid + strlen(uuid) - 2, "%x", &number) != 1)
        return INVALID_VALUE;
    for (int n = 0; n < count; n++) {
        if (all[n].number == number) {
            *device = (void *)(uintptr_t)(n + 1);
            return OK;
        }
    }
    return INVALID_VALUE;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory)
{
    struct gpu all[MOST];
    int index = (int)(uintptr_t)device - 1;
    if (index >= gpus(all))
        return INVALID_VALUE;
    memory[0] = all[index].bytes;
    memory[1] = all[index].unused;
    memory[2] = all[index].bytes - all[index].unused;
    return OK;
}

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned instances[2];
};

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *out)
{
    struct gpu all[MOST];
    char path[512];
    unsigned long long used = 1 << 20;
    unsigned room = *count;
    int index = (int)(uintptr_t)device - 1, here = gpus(all);
    in_directory(path, "used");
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%llu", &used) != 1)
        used = 1 << 20;
    if (file)
        fclose(file);
    in_directory(path, "everywhere");
    int everywhere = access(path, F_OK) == 0;
    *count = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes)) && index < here;) {
        struct program there;
        int pid = atoi(entry->d_name);
        if (pid > 0 && *count < room && reach(pid, &there, READ) && (everywhere || there.gpu == all[index].number))
            out[(*count)++] = (struct process){ pid, used, { 0, 0 } };
    }
    if (processes)
        closedir(processes);
    return OK;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    char path[512], text[64] = "1.0";
    in_directory(path, "driver");
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%63s", text) != 1)
        strcpy(text, "1.0");
    if (file)
        fclose(file);
    snprintf(version, length, "%s", text);
    return OK;
}
