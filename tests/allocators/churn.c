/* Uses memory in every way that a restore from page files could make a difference to, before and after one.
 *
 *   churn GO SECONDS        prints "ready", waits for the file GO, then churns; "ok" if all was right
 *
 * Before: memory is filled with bytes that are not zero, and much of it freed. After: memory that the allocator calls
 * zero is checked to be zero, contents are checked to stay, directly mapped memory is given back and grown.
 * With -DDIRECT, memory is given back by system calls of the program's own.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef DIRECT
static long give_back(void *at, size_t length, int advice) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_madvise), "D"(at), "S"(length), "d"(advice) : "rcx", "r11", "memory");
    return result;
}
#else
#define give_back madvise
#endif
#ifdef GO
/* What the tools of Go put into every program that they build. */
__attribute__((section(".note.go.buildid"), used, aligned(4))) static const struct {
    uint32_t name, contents, kind;
    char text[4], id[4];
} note = {4, 4, 4, "Go\0", "id\0"};
#endif

enum { THREADS = 3, SLOTS = 400, MAPPED = 8 << 20, PAGE = 4096 };

static atomic_int failures;
static double until;

static void fail(const char *what, size_t size, size_t at, int found) {
    if (atomic_fetch_add(&failures, 1) < 10)
        printf("%s of %zu bytes: %#x at %zu\n", what, size, found, at);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void check(const char *what, const unsigned char *bytes, size_t from, size_t size, unsigned char expected) {
    for (size_t at = from; at < size; at++)
        if (bytes[at] != expected) return fail(what, size, at, bytes[at]);
}

/* Mostly small, sometimes a megabyte or more. */
static size_t size_of(unsigned *seed) {
    unsigned random = rand_r(seed);
    return 1 + (random % 16 == 0 ? rand_r(seed) % (3 << 20) : random % 4 == 0 ? rand_r(seed) % 100000 : rand_r(seed) % 2000);
}

struct slot { unsigned char *bytes; size_t size; unsigned char filled; };
struct worker { struct slot slots[SLOTS]; unsigned seed; };
static struct worker workers[THREADS];

static void step(struct worker *worker) {
    struct slot *slot = &worker->slots[rand_r(&worker->seed) % SLOTS];
    if (slot->bytes && rand_r(&worker->seed) % 4 == 0) {
        size_t size = slot->size + size_of(&worker->seed);
        slot->bytes = realloc(slot->bytes, size);
        check("what realloc kept", slot->bytes, 0, slot->size, slot->filled);
        memset(slot->bytes, slot->filled, size);
        slot->size = size;
        return;
    }
    if (slot->bytes) check("what was kept", slot->bytes, 0, slot->size, slot->filled);
    free(slot->bytes);
    slot->size = size_of(&worker->seed);
    slot->bytes = calloc(1, slot->size);
    check("calloc", slot->bytes, 0, slot->size, 0);
    slot->filled = 1 + rand_r(&worker->seed) % 255;
    memset(slot->bytes, slot->filled, slot->size);
}

static void *churn(void *argument) {
    struct worker *worker = argument;
    for (int count = 0; now() < until; count++) {
        step(worker);
        if (count % 50 == 49)
            for (int number = 0; number < SLOTS; number += 2) {
                free(worker->slots[number].bytes);
                worker->slots[number].bytes = NULL;
            }
#ifdef GLIBC
        if (count % 100 == 99) malloc_trim(0);
#endif
    }
    return NULL;
}

static unsigned char *map(int protection) {
    unsigned char *bytes = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(bytes, 0x5a, MAPPED);
    mprotect(bytes, MAPPED, protection);
    return bytes;
}

/* Memory that the program has mapped itself. */
static void check_mapped(unsigned char *whole, unsigned char *fixed, unsigned char *growing, unsigned char *shared) {
    check("before", whole, 0, MAPPED, 0x5a);
    if (give_back(whole + PAGE, 3 * PAGE, MADV_DONTNEED)) fail("DONTNEED", 0, 0, 0);
    check("the page before", whole, 0, PAGE, 0x5a);
    check("DONTNEED", whole, PAGE, 4 * PAGE, 0);
    check("the rest", whole, 4 * PAGE, MAPPED, 0x5a);
    memset(whole + PAGE, 1, PAGE);
    check("written again", whole, PAGE, 2 * PAGE, 1);
#ifndef DIRECT
    if (syscall(SYS_madvise, whole + MAPPED / 2, MAPPED / 4, MADV_DONTNEED)) fail("syscall", 0, 0, 0);
    check("DONTNEED by syscall", whole, MAPPED / 2, MAPPED * 3 / 4, 0);
#endif
    if (give_back(whole + MAPPED * 3 / 4, MAPPED / 4, MADV_FREE)) fail("FREE", 0, 0, 0);
    for (size_t at = MAPPED * 3 / 4; at < MAPPED; at++)
        if (whole[at] != 0 && whole[at] != 0x5a) return fail("FREE", 0, at, whole[at]);
    if (give_back(fixed, MAPPED, MADV_DONTNEED)) fail("DONTNEED, read-only", 0, 0, 0);
    check("DONTNEED, read-only", fixed, 0, MAPPED, 0);
    int status;
    pid_t child = fork();
    if (child == 0) {
        fixed[0] = 1;
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status)) fail("read-only memory became writable", 0, 0, status);
    growing = mremap(growing, MAPPED, 3 * MAPPED, MREMAP_MAYMOVE);
    check("kept by mremap", growing, 0, MAPPED, 0x5a);
    check("grown by mremap", growing, MAPPED, 3 * MAPPED, 0);
    growing = mremap(growing, 3 * MAPPED, 9 * MAPPED, MREMAP_MAYMOVE);
    check("grown again", growing, MAPPED, 9 * MAPPED, 0);
    if (give_back(shared, MAPPED, MADV_DONTNEED)) fail("DONTNEED, shared", 0, 0, 0);
    check("shared memory", shared, 0, MAPPED, 7);
    child = fork();
    if (child == 0) {
        check("a child's", whole, 4 * PAGE, MAPPED / 2, 0x5a);
        give_back(whole, MAPPED, MADV_DONTNEED);
        check("a child's DONTNEED", whole, 0, MAPPED, 0);
        _exit(failures != 0);
    }
    waitpid(child, &status, 0);
    if (status) fail("the child", 0, 0, status);
    check("not the child's", whole, 4 * PAGE, MAPPED / 2, 0x5a);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    unsigned char *whole = map(PROT_READ | PROT_WRITE), *fixed = map(PROT_READ), *growing = map(PROT_READ | PROT_WRITE);
    unsigned char *shared = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(shared, 7, MAPPED);
    pthread_t threads[THREADS];
    until = now() + 1;
    for (int number = 0; number < THREADS; number++) {
        workers[number].seed = number + 1;
        pthread_create(&threads[number], NULL, churn, &workers[number]);
    }
    for (int number = 0; number < THREADS; number++) pthread_join(threads[number], NULL);
    puts("ready");
    fflush(stdout);
    while (access(arguments[1], F_OK)) usleep(10000);
    check_mapped(whole, fixed, growing, shared);
    until = now() + atof(arguments[2]);
    for (int number = 0; number < THREADS; number++) pthread_create(&threads[number], NULL, churn, &workers[number]);
    for (int number = 0; number < THREADS; number++) pthread_join(threads[number], NULL);
    puts(failures ? "wrong" : "ok");
    return failures != 0;
}
