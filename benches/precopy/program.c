/* Holds memory, and writes to part of it when it is told to.
 *
 * program DIRECTORY MEGABYTES MAPPINGS THREADS [huge]
 *
 * The memory lies in so many mappings that the kernel does not join; so many threads wait. It waits at DIRECTORY/command
 * for `PERMILLE SEED RUN`, writes to so much of its pages, in runs of RUN pages at random places, and answers at
 * DIRECTORY/answer with the pages that it wrote and the microseconds that it took. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul

static uint64_t state = 88172645463325252ull;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static void *waits(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

static int opened(const char *directory, const char *name, int flags)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return open(path, flags | O_CLOEXEC);
}

static double now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

int main(int count, char **words)
{
	if (count < 5)
		return 2;
	size_t pages = strtoul(words[2], NULL, 10) << 8, mappings = strtoul(words[3], NULL, 10);
	size_t each = pages / mappings;
	char **memory = calloc(mappings, sizeof(*memory));
	for (size_t at = 0; at < mappings; at++) {
		/* A page between two of them that nobody may touch keeps them apart. */
		char *area = mmap(NULL, (each + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (area == MAP_FAILED || mprotect(area + each * PAGE, PAGE, PROT_NONE))
			return 3;
		if (count > 5)
			madvise(area, each * PAGE, MADV_HUGEPAGE);
		for (size_t word = 0; word < each * PAGE / 8; word++)
			((uint64_t *)area)[word] = draw();
		memory[at] = area;
	}
	for (long at = strtol(words[4], NULL, 10); at > 1; at--) {
		pthread_t thread;
		pthread_attr_t small;
		pthread_attr_init(&small);
		pthread_attr_setstacksize(&small, 64 << 10);
		if (pthread_create(&thread, &small, waits, NULL))
			return 4;
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		char text[128] = "";
		int from = opened(words[1], "command", O_RDONLY);
		if (from < 0 || read(from, text, sizeof(text) - 1) <= 0)
			return 5;
		close(from);
		unsigned long permille, seed, run;
		if (sscanf(text, "%lu %lu %lu", &permille, &seed, &run) != 3)
			return 6;
		state = 88172645463325252ull ^ (seed + 1) * 0x9e3779b97f4a7c15ull;
		size_t written = 0, wanted = each * mappings * permille / 1000;
		double began = now_us();
		while (written < wanted) {
			char *area = memory[draw() % mappings];
			size_t first = draw() % each;
			for (size_t page = first; page < first + run && page < each && written < wanted; page++, written++)
				((uint64_t *)(area + page * PAGE))[draw() % (PAGE / 8)] = draw();
		}
		double took = now_us() - began;
		int to = opened(words[1], "answer", O_WRONLY);
		if (to < 0 || dprintf(to, "%zu %.0f\n", written, took) < 0)
			return 7;
		close(to);
	}
}
