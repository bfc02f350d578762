/* Comes before the C library in a CRIU that dumps, and does some of its calls in a shorter way; see mod.rs. Whatever cannot
 * be done so is the kernel's to do, as without it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "in_criu.h"

struct shared *shared;

__attribute__((constructor)) static void load(void)
{
	const char *number = getenv("REKINDLE_ASSIST");
	struct stat meta;
	if (!number || fstat(atoi(number), &meta) || meta.st_size < (off_t)sizeof(*shared))
		return;
	void *at = mmap(NULL, meta.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(number), 0);
	if (at == MAP_FAILED)
		return;
	shared = at;
}

int is_criu(void)
{
	return shared && shared->criu == (uint32_t)getpid();
}

/* The kernel's `pm_scan_arg` and `page_region`. */
struct region {
	uint64_t start, end, categories;
};
struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t inverted, mask, any_of, wanted;
};
#define PAGEMAP_SCAN 0xc0606610ul
/* The kernel does not look at this bit of a request; the filter leaves alone what has it. */
#define UNTOLD (1ul << 32)
#define PROTECTABLE 1ul
#define WRITTEN 2ul
#define PRESENT 8ul
#define SWAPPED 16ul

/* So many stretches of written pages are looked for at once. More of them are found as quickly by looking at all. */
#define STRETCHES 64

static long ask(int fd, struct scan *asked)
{
	return syscall(SYS_ioctl, fd, PAGEMAP_SCAN | UNTOLD, asked);
}

/* CRIU's look for pages, without those that were copied before the program stood still. */
static int scan_all(int fd, struct scan *asked)
{
	struct scan ours = *asked;
	ours.wanted |= PROTECTABLE | WRITTEN;
	long found = ask(fd, &ours);
	if (found < 0)
		return -1;
	struct region *regions = (struct region *)(uintptr_t)asked->vec;
	int told = 0;
	for (long i = 0; i < found; i++) {
		struct region region = regions[i];
		if ((region.categories & (PROTECTABLE | WRITTEN)) == PROTECTABLE)
			continue;
		region.categories &= asked->wanted;
		regions[told++] = region;
	}
	asked->walk_end = ours.walk_end;
	return told;
}

/* Whether all areas in a stretch are such as we protect. The kernel looks at areas for it, and at the first page of another. */
static int is_protectable(int fd, const struct scan *asked)
{
	struct region first;
	struct scan other = {.size = sizeof(other), .start = asked->start, .end = asked->end, .vec = (uintptr_t)&first, .vec_len = 1};
	other.max_pages = 1;
	other.inverted = other.mask = other.wanted = PROTECTABLE;
	return ask(fd, &other) == 0;
}

/* The same as `scan_all`, where most of the pages were not written to. Asked for what was written alone, the kernel looks at page
 * tables; asked for all that CRIU wants to know, also at what it knows of each page, which is elsewhere. */
static int scan(int fd, struct scan *asked)
{
	if (asked->flags || asked->any_of != (PRESENT | SWAPPED))
		return ask(fd, asked);
	struct region written[STRETCHES];
	struct scan quick = {.size = sizeof(quick), .start = asked->start, .end = asked->end, .vec = (uintptr_t)written, .vec_len = STRETCHES};
	quick.mask = quick.wanted = WRITTEN;
	long found = is_protectable(fd, asked) ? ask(fd, &quick) : -1;
	if (found < 0 || found == STRETCHES || quick.walk_end < asked->end)
		return scan_all(fd, asked);
	uint64_t told = 0;
	for (long i = 0; i < found; i++) {
		struct scan part = *asked;
		part.start = written[i].start;
		part.end = written[i].end;
		part.vec += told * sizeof(struct region);
		part.vec_len -= told;
		int more = part.vec_len ? scan_all(fd, &part) : 0;
		if (more < 0)
			return -1;
		told += more;
		if (!part.vec_len || part.walk_end < part.end) {
			asked->walk_end = part.vec_len ? part.walk_end : part.start;
			return told;
		}
	}
	asked->walk_end = asked->end;
	return told;
}

int ioctl(int fd, unsigned long request, void *argument)
{
	if (request == PAGEMAP_SCAN && is_criu() && shared->hides_unwritten)
		return scan(fd, argument);
	return syscall(SYS_ioctl, fd, request, argument);
}

/* All of a file; NULL if it cannot be had. */
static char *contents(int directory, const char *name, size_t *length)
{
	int fd = syscall(SYS_openat, directory, name, O_RDONLY | O_CLOEXEC, 0);
	size_t room = 1 << 20, have = 0;
	char *text = fd < 0 ? NULL : malloc(room);
	while (text) {
		ssize_t read_now = read(fd, text + have, room - have);
		if (read_now == 0)
			break;
		have += read_now > 0 ? read_now : 0;
		char *larger = read_now < 0 ? NULL : have < room ? text : realloc(text, room *= 2);
		if (!larger)
			free(text);
		text = larger;
	}
	if (fd >= 0)
		close(fd);
	*length = have;
	return text;
}

/* Whether areas that were described before are those that there are: each has one line of `maps`, then one of flags. */
static int agree(const char *described, size_t length, const char *maps, size_t maps_length)
{
	const char *end = described + length, *maps_end = maps + maps_length;
	while (described < end && maps < maps_end) {
		const char *line = memchr(maps, '\n', maps_end - maps);
		size_t line_length = line ? (size_t)(line + 1 - maps) : 0;
		if (!line || (size_t)(end - described) < line_length || memcmp(described, maps, line_length))
			return 0;
		const char *flags = memchr(described + line_length, '\n', end - described - line_length);
		if (!flags)
			return 0;
		described = flags + 1;
		maps += line_length;
	}
	return described == end && maps == maps_end;
}

uint32_t process(int directory)
{
	char link[64], path[64];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", directory);
	ssize_t length = readlink(link, path, sizeof(path) - 1);
	if (length <= 0)
		return 0;
	path[length] = 0;
	return strncmp(path, "/proc/", 6) ? 0 : atoi(path + 6);
}

int described_areas(int directory)
{
	uint32_t pid = process(directory);
	int found = 0;
	while (found < PROCESSES && (!pid || shared->areas[found].pid != pid))
		found++;
	if (found == PROCESSES)
		return -1;
	const char *described = (const char *)shared + shared->areas[found].at;
	size_t length = shared->areas[found].length, maps_length;
	char *maps = contents(directory, "maps", &maps_length);
	int same = maps && agree(described, length, maps, maps_length);
	free(maps);
	if (!same)
		return -1;
	int fd = memfd_create("smaps", MFD_CLOEXEC);
	for (size_t done = 0; fd >= 0 && done < length;) {
		ssize_t wrote = write(fd, described + done, length - done);
		if (wrote <= 0) {
			close(fd);
			return -1;
		}
		done += wrote;
	}
	if (fd >= 0 && lseek(fd, 0, SEEK_SET) == 0)
		shared->areas[found].is_used = 1;
	return fd;
}
