/* CRIU's look for pages, without those that were copied before the program stood still. */
#define _GNU_SOURCE
#include <stdlib.h>
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
/* More stretches than these are not kept. */
#define MOST 32768

/* Where a process's pages were written to since they were protected, or cannot be protected: none of its others are CRIU's to
 * dump. The process stands still from before CRIU opens its `pagemap` until after it closes that. Mostly we have been told;
 * see written.rs. */
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

/* Asked for nothing else, the kernel looks at page tables alone; asked for all that CRIU wants to know, also at what it knows of
 * each page, which is elsewhere. */
static void find_written(int fd)
{
	/* CRIU asks about memory of its own, too, which does not stand still. */
	uint32_t pid = process(fd), at_place = 0;
	written_of = fd;
	written_inode = inode(fd);
	is_known = 0;
	written_count = 0;
	static struct region *own_look;
	while (at_place < PROCESSES && (!pid || shared->areas[at_place].pid != pid))
		at_place++;
	if (at_place == PROCESSES)
		return;
	if (shared->areas[at_place].is_written_known) {
		written = (const void *)((const char *)shared + shared->areas[at_place].written);
		written_count = shared->areas[at_place].written_count;
		is_known = 1;
		return;
	}
	if (!own_look && !(own_look = malloc(MOST * sizeof(*own_look))))
		return;
	written = own_look;
	/* A page that was not written to under another protection than ours has no note of it, and is found so. */
	struct region first;
	struct scan other = {.size = sizeof(other), .end = END, .vec = (uintptr_t)&first, .vec_len = 1, .max_pages = 1};
	other.inverted = other.mask = PROTECTABLE | WRITTEN;
	other.any_of = other.wanted = PRESENT | SWAPPED;
	if (ask(fd, &other))
		return;
	for (uint64_t at = 0; at < END;) {
		struct scan quick = {.size = sizeof(quick), .start = at, .end = END, .mask = WRITTEN, .wanted = WRITTEN};
		quick.vec = (uintptr_t)(own_look + written_count);
		quick.vec_len = MOST - written_count;
		long found = quick.vec_len ? ask(fd, &quick) : -1;
		if (found < 0 || quick.walk_end <= at)
			return;
		written_count += found;
		/* It may have looked farther than it says. */
		at = found && written[written_count - 1].end > quick.walk_end ? written[written_count - 1].end : quick.walk_end;
	}
	is_known = 1;
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
	uint32_t pid = process(fd);
	for (uint32_t n = 0; pid && n < PROCESSES; n++)
		if (shared->areas[n].pid == pid)
			return shared->areas[n].has_no_guards;
	return 0;
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
