/* CRIU's look for pages, without those that were copied before the program stood still. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "in_criu.h"

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
#define GUARD 256ul
/* Where the addresses of processes end. */
#define END 0x7ffffffff000ul
/* Where a process's pages were written to since they were protected, or cannot be protected: none of its others are CRIU's to
 * dump. The process stands still from before CRIU opens its `pagemap` until after it closes that. See
 * written.rs. */
static const struct region *written;
static long written_count;
/* CRIU's descriptor of the `pagemap` that this is of, and the file's number; -1 if of none. */
static int written_of = -1;
static uint64_t written_inode;
static int is_known;

static long ask(int fd, struct scan *asked)
{
	return syscall(SYS_ioctl, fd, PAGEMAP_SCAN | UNTOLD, asked);
}

void forget_pages(int fd)
{
	if (fd == written_of)
		written_of = -1;
}

/* The place of the process that a descriptor is of; PROCESSES if it was not described. CRIU asks about memory of its own, too,
 * which does not stand still. */
static uint32_t place(int fd)
{
	uint32_t pid = process(fd), at = 0;
	while (at < PROCESSES && (!pid || shared->areas[at].pid != pid))
		at++;
	return at;
}

static void find_written(int fd)
{
	uint32_t at = place(fd);
	written_of = fd;
	written_inode = inode(fd);
	is_known = at < PROCESSES && is_found(&shared->areas[at].is_written_known);
	if (is_known) {
		written = (const void *)((const char *)shared + shared->areas[at].written);
		written_count = shared->areas[at].written_count;
	}
}

/* All pages in a stretch that are CRIU's to dump. */
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

/* The first stretch that ends behind an address. */
static long first_behind(uint64_t at)
{
	long low = 0, high = written_count;
	while (low < high) {
		long middle = low + (high - low) / 2;
		if (written[middle].end > at)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* Whether a process is asked for guards, and has none. */
static int has_no_guards(int fd, const struct scan *asked)
{
	if (asked->flags || asked->inverted || asked->any_of || asked->mask != GUARD || asked->wanted != GUARD)
		return 0;
	uint32_t at = place(fd);
	return at < PROCESSES && is_found(&shared->areas[at].has_no_guards);
}

static int scan(int fd, struct scan *asked)
{
	if (has_no_guards(fd, asked)) {
		asked->walk_end = asked->end;
		return 0;
	}
	if (!shared->hides_unwritten || asked->flags || asked->max_pages || asked->any_of != (PRESENT | SWAPPED))
		return ask(fd, asked);
	if (fd != written_of || inode(fd) != written_inode)
		find_written(fd);
	if (!is_known || asked->end > END)
		return scan_all(fd, asked);
	uint64_t told = 0;
	for (long i = first_behind(asked->start); i < written_count && written[i].start < asked->end; i++) {
		struct scan part = *asked;
		part.start = written[i].start > asked->start ? written[i].start : asked->start;
		part.end = written[i].end < asked->end ? written[i].end : asked->end;
		part.vec += told * sizeof(struct region);
		part.vec_len -= told;
		part.walk_end = part.start;
		int more = part.vec_len ? scan_all(fd, &part) : 0;
		if (more < 0)
			return -1;
		told += more;
		/* There was no more room. */
		if (part.walk_end < part.end) {
			asked->walk_end = part.walk_end;
			return told;
		}
	}
	asked->walk_end = asked->end;
	return told;
}

int ioctl(int fd, unsigned long request, void *argument)
{
	if (request == PAGEMAP_SCAN && is_criu())
		return scan(fd, argument);
	return syscall(SYS_ioctl, fd, request, argument);
}
