/* What each page of the program's memory must be, and comparing it with what is there. */
#include "wander.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct page model[MOST_PAGES], heap[HEAP_PAGES];
uint32_t shm_stamp[SHM_PAGES], last_stamp = FILE_PAGES;
size_t pages, heap_pages;
char *heap_start;
uint64_t state;
int is_child;
char wrong[512];

uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

uint64_t draw(void)
{
	return mix(state += 0x9e3779b97f4a7c15ull);
}

size_t below(size_t most)
{
	return draw() % most;
}

void die(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	if (!wrong[0])
		vsnprintf(wrong, sizeof(wrong), format, list);
	va_end(list);
}

void make(uint32_t stamp, uint32_t poke, uint64_t *into)
{
	if (stamp == 0)
		memset(into, 0, PAGE);
	else
		for (size_t word = 0; word < WORDS; word++)
			into[word] = mix((uint64_t)stamp << 16 | word);
	if (poke)
		into[poke % WORDS] = mix((uint64_t)poke << 40);
}

static void compare(const struct page *page, const char *address, const char *found)
{
	static uint64_t expected[WORDS];
	uint32_t stamp = page->kind == SHM_FILE ? shm_stamp[page->place] : page->stamp;
	make(stamp, page->kind == SHM_FILE ? 0 : page->poke, expected);
	if (memcmp(found, expected, PAGE) == 0)
		return;
	size_t word = 0;
	while (((const uint64_t *)found)[word] == expected[word])
		word++;
	die("%s: the page at %p (kind %d, protection %d, advice %d, stamp %u, poke %u) has %#lx in word %zu in place of %#lx",
	    is_child ? "child" : "program", address, page->kind, page->protection, page->advice, stamp, page->poke,
	    ((const uint64_t *)found)[word], word, expected[word]);
}

static int is_checked(const struct page *page)
{
	/* What processes share its owner checks. */
	return page->kind != NONE && !(is_child && (page->kind == SHARED || page->kind == SHM_FILE));
}

static size_t check_range(const struct page *first, size_t count, char *start, int memory)
{
	static char hidden[PAGE];
	size_t checked = 0;
	for (size_t at = 0; at < count && !wrong[0]; at++) {
		char *address = start + at * PAGE;
		if (!is_checked(&first[at]))
			continue;
		checked++;
		if (first[at].protection & PROT_READ) {
			compare(&first[at], address, address);
		} else if (pread(memory, hidden, PAGE, (off_t)address) == (ssize_t)PAGE) {
			compare(&first[at], address, hidden);
		} else {
			die("the page at %p (kind %d) cannot be read: %s", address, first[at].kind, strerror(errno));
		}
	}
	return checked;
}

/* Says where the kernel says otherwise of the arena than the model does. */
static int compare_areas(char *difference, size_t bytes)
{
	static char line[PATH_MAX + 256];
	FILE *areas = fopen("/proc/self/smaps", "re");
	unsigned long start, end, first = 0, last = 0, at = 0;
	int found = 0;
	while (areas && !found && fgets(line, sizeof(line), areas)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
			first = start, last = end;
			continue;
		}
		if (strncmp(line, "VmFlags:", 8) || first < (uintptr_t)ARENA || last > (uintptr_t)ARENA + pages * PAGE)
			continue;
		int protection = (strstr(line, " rd") ? PROT_READ : 0) | (strstr(line, " wr") ? PROT_WRITE : 0) |
				 (strstr(line, " ex") ? PROT_EXEC : 0);
		int advice = strstr(line, " dc") ? DONTFORK : 0;
		for (; at < (last - (uintptr_t)ARENA) / PAGE && !found; at++) {
			int is_in = at >= (first - (uintptr_t)ARENA) / PAGE;
			found = is_in != (model[at].kind != NONE) ||
				(is_in && (model[at].protection != protection || model[at].advice != advice));
			if (found)
				snprintf(difference, bytes,
					 "the page at %p (kind %d) is %smapped, with protection %d and advice %d in place of %d and %d",
					 ARENA + at * PAGE, model[at].kind, is_in ? "" : "not ", protection, advice,
					 model[at].protection, model[at].advice);
		}
	}
	for (; areas && at < pages && !found; at++) {
		found = model[at].kind != NONE;
		if (found)
			snprintf(difference, bytes, "the page at %p of kind %d is not mapped", ARENA + at * PAGE, model[at].kind);
	}
	if (!areas)
		found = snprintf(difference, bytes, "/proc/self/smaps cannot be read: %s", strerror(errno));
	else
		fclose(areas);
	return found;
}

void check_areas(void)
{
	char difference[256];
	/* A restore in the middle of the list loses the place in it. */
	if (compare_areas(difference, sizeof(difference)) && compare_areas(difference, sizeof(difference)))
		die("%s: %s", is_child ? "child" : "program", difference);
}

static uint64_t nanoseconds(struct timespec at)
{
	return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

/* The clock goes on, and is the same for who asks the kernel and who reads the kernel's page: a sleep until a time that was
 * read from the one would else last as long as they differ. */
static void check_clock(void)
{
	static uint64_t last;
	struct timespec kernel[2], page;
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &kernel[0]);
	clock_gettime(CLOCK_MONOTONIC, &page);
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &kernel[1]);
	uint64_t now = nanoseconds(page);
	if (now < nanoseconds(kernel[0]) || now > nanoseconds(kernel[1]) || now < last)
		die("%s: the clock is at %lu, the kernel says %lu and %lu, and it was at %lu", is_child ? "child" : "program", now,
		    nanoseconds(kernel[0]), nanoseconds(kernel[1]), last);
	last = now;
}

size_t check(void)
{
	check_clock();
	check_areas();
	int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	size_t checked = check_range(model, pages, ARENA, memory);
	checked += check_range(heap, heap_pages, heap_start, memory);
	close(memory);
	return checked + (has_gpu() && !is_child ? gpu_check() : 0);
}
