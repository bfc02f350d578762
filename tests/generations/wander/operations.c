/* What the program does to its memory. */
#include "wander.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

int file, shm;
unsigned long done;

static void fill(struct page *page, char *address)
{
	if (!(page->protection & PROT_WRITE) || (is_child && (page->kind == SHARED || page->kind == SHM_FILE)))
		return;
	if (page->kind == SHM_FILE) {
		shm_stamp[page->place] = below(20) ? ++last_stamp : 0;
		make(shm_stamp[page->place], 0, (uint64_t *)address);
	} else if (page->kind != NONE && page->stamp && below(8) == 0) {
		page->poke = (uint32_t)draw() | 1;
		/* Another poke may be in another word. */
		make(page->stamp, page->poke, (uint64_t *)address);
	} else if (page->kind != NONE) {
		page->stamp = below(20) ? ++last_stamp : 0;
		page->poke = 0;
		make(page->stamp, 0, (uint64_t *)address);
	}
}

/* A stretch of the arena: mostly small, sometimes large. */
static struct range any(void)
{
	size_t most = below(6) == 0 ? pages / 2 : below(3) == 0 ? 512 : 24;
	struct range range = { below(pages), 0 };
	size_t left = pages - range.start;
	range.count = 1 + below(most < left ? most : left);
	return range;
}

static int is_all(struct range range, int kind)
{
	for (size_t at = range.start; at < range.start + range.count; at++)
		if (model[at].kind != kind)
			return 0;
	return 1;
}

/* A stretch that is mapped alike, as far as it goes from a page at random. */
static int alike(struct range *range)
{
	*range = any();
	const struct page *first = &model[range->start];
	if (first->kind == NONE)
		return 0;
	for (size_t at = 1; at < range->count; at++) {
		const struct page *page = first + at;
		if (page->kind != first->kind || page->protection != first->protection || page->advice != first->advice ||
		    (page->kind != ANONYMOUS && page->kind != SHARED && page->place != first->place + at))
			range->count = at;
	}
	return 1;
}

static int protection(void)
{
	static const int known[] = { PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ,
				     PROT_NONE, PROT_READ | PROT_WRITE | PROT_EXEC, PROT_READ | PROT_EXEC };
	return known[below(sizeof(known) / sizeof(*known))];
}

static void must(int worked, const char *what, struct range range)
{
	if (!worked)
		die("%s of %zu pages at %p: %s", what, range.count, ARENA + range.start * PAGE, strerror(errno));
}

static void set(struct range range, struct page like)
{
	for (size_t at = 0; at < range.count; at++) {
		model[range.start + at] = like;
		if (like.kind == PRIVATE || like.kind == SHM_FILE)
			model[range.start + at].place = like.place + at;
		if (like.kind == PRIVATE)
			model[range.start + at].stamp = 1 + like.place + at;
	}
}

static void do_map(void)
{
	struct range range = any();
	struct page like = { .protection = PROT_READ | PROT_WRITE };
	int flags = MAP_FIXED | MAP_PRIVATE, from = -1;
	switch (below(10)) {
	case 0:
	case 1:
		like.kind = PRIVATE;
		from = file;
		break;
	case 2:
		like.kind = SHARED;
		flags = MAP_FIXED | MAP_SHARED;
		break;
	case 3:
		like.kind = SHM_FILE;
		from = shm;
		flags = MAP_FIXED | MAP_SHARED;
		break;
	default:
		like.kind = ANONYMOUS;
		like.protection = protection();
	}
	if (from < 0)
		flags |= MAP_ANONYMOUS;
	size_t length = from == file ? FILE_PAGES : SHM_PAGES;
	if (from >= 0) {
		like.place = below(length);
		if (range.count > length - like.place)
			range.count = length - like.place;
	}
	void *at = mmap(ARENA + range.start * PAGE, range.count * PAGE, like.protection, flags, from, like.place * PAGE);
	must(at != MAP_FAILED, "mmap", range);
	set(range, like);
}

static void do_unmap(void)
{
	struct range range = any();
	if (range.count > 512)
		range.count = 512;
	must(munmap(ARENA + range.start * PAGE, range.count * PAGE) == 0, "munmap", range);
	set(range, (struct page){ 0 });
}

static void do_write(void)
{
	struct range range = any();
	size_t step = below(2) ? 1 : 1 + below(9);
	for (size_t at = range.start; at < range.start + range.count; at += step)
		fill(&model[at], ARENA + at * PAGE);
	for (size_t at = below(16); at < heap_pages; at += 1 + below(32))
		fill(&heap[at], heap_start + at * PAGE);
}

static void do_protect(void)
{
	struct range range;
	if (!alike(&range))
		return;
	int to = protection();
	/* CRIU puts an instruction of its own where code is, which such memory does not take. */
	if (model[range.start].kind == SHARED || model[range.start].kind == SHM_FILE)
		to &= ~PROT_EXEC;
	must(mprotect(ARENA + range.start * PAGE, range.count * PAGE, to) == 0, "mprotect", range);
	for (size_t at = 0; at < range.count; at++)
		model[range.start + at].protection = to;
}

static void do_give_back(void)
{
	struct range range;
	if (!alike(&range))
		return;
	struct page *first = &model[range.start];
	if (first->kind == SHARED || first->kind == SHM_FILE)
		return;
	must(madvise(ARENA + range.start * PAGE, range.count * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED", range);
	for (size_t at = 0; at < range.count; at++) {
		first[at].stamp = first->kind == PRIVATE ? 1 + first[at].place : 0;
		first[at].poke = 0;
	}
}

static void do_advise(void)
{
	/* Not MADV_WIPEONFORK, which CRIU before 4.2 loses. */
	static const struct {
		int advice, set, clear;
	} known[] = { { MADV_DONTFORK, DONTFORK, 0 },		{ MADV_DOFORK, 0, DONTFORK },
		      { MADV_NOHUGEPAGE, 0, 0 },		{ MADV_HUGEPAGE, 0, 0 },
		      { MADV_DONTDUMP, 0, 0 },			{ MADV_DODUMP, 0, 0 } };
	struct range range;
	if (!alike(&range) || model[range.start].kind != ANONYMOUS)
		return;
	size_t chosen = below(sizeof(known) / sizeof(*known));
	if (madvise(ARENA + range.start * PAGE, range.count * PAGE, known[chosen].advice))
		return;
	for (size_t at = range.start; at < range.start + range.count; at++)
		model[at].advice = (model[at].advice | known[chosen].set) & ~known[chosen].clear;
}

/* Moves a stretch to where nothing is, and lets it grow or shrink. */
static void do_move(void)
{
	struct range from, to = { below(pages), 0 };
	if (!alike(&from))
		return;
	struct page *first = &model[from.start];
	to.count = from.count;
	if ((first->kind == ANONYMOUS || first->kind == PRIVATE) && below(2))
		to.count += below(2) ? below(64) : 0;
	if (below(5) == 0)
		to.count = 1 + below(from.count);
	if (first->kind == PRIVATE && first->place + to.count > FILE_PAGES)
		to.count = FILE_PAGES - first->place;
	int in_place = below(3) == 0;
	if (in_place)
		to.start = from.start;
	if (to.start + to.count > pages)
		return;
	struct range news = to;
	if (in_place) {
		size_t kept = from.count < to.count ? from.count : to.count;
		news = (struct range){ to.start + kept, to.count - kept };
	}
	if (!is_all(news, NONE))
		return;
	char *old = ARENA + from.start * PAGE, *new = ARENA + to.start * PAGE;
	void *moved = in_place ? mremap(old, from.count * PAGE, to.count * PAGE, 0) :
				 mremap(old, from.count * PAGE, to.count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, new);
	/* What looks alike may be several areas for the kernel, which moves them one by one only. */
	if (moved == MAP_FAILED)
		return;
	static struct page copy[MOST_PAGES];
	memcpy(copy, first, from.count * sizeof(*copy));
	struct page like = *first;
	like.stamp = like.poke = 0;
	set(from, (struct page){ 0 });
	set(to, like);
	memcpy(&model[to.start], copy, (from.count < to.count ? from.count : to.count) * sizeof(*copy));
}

static void do_heap(void)
{
	if ((char *)sbrk(0) != heap_start + heap_pages * PAGE)
		return;
	size_t to = below(HEAP_PAGES + 1);
	if (sbrk(((intptr_t)to - (intptr_t)heap_pages) * (intptr_t)PAGE) == (void *)-1)
		return;
	for (size_t at = heap_pages; at < to; at++)
		heap[at] = (struct page){ .kind = ANONYMOUS, .protection = PROT_READ | PROT_WRITE };
	heap_pages = to;
}

void operate(uint64_t count)
{
	static void (*const known[])(void) = { do_map,	   do_map,     do_unmap,     do_write,	 do_write,   do_write,	do_write,
					       do_protect, do_protect, do_give_back, do_advise, do_move, do_move, do_heap,
					       do_child };
	for (; count && !wrong[0]; count--, done++) {
		if (has_gpu() && !is_child && below(5) == 0)
			gpu_operate();
		else
			known[below(sizeof(known) / sizeof(*known))]();
	}
}
