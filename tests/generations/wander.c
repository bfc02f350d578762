/* A program that changes its memory at random and knows every byte of it.
 *
 *   wander DIRECTORY SEED PAGES
 *
 * All that it maps lies in an arena at a fixed address, PAGES long. A model says of each page of it what it is and from
 * which number its bytes are made, so that they can be made again and compared. It waits at the named pipe
 * DIRECTORY/command for words:
 *
 *   go SEED COUNT     compares all, does COUNT random operations, compares all
 *   end               ends
 *
 * and answers each at DIRECTORY/answer with a line, `ok OPERATIONS PAGES` or what was wrong. It holds neither pipe while
 * it works or waits, so that it can be taken at any moment. A child, forked now and then, does the same with the memory
 * that it was forked with.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
#define ARENA ((char *)0x100000000000)
#define MOST_PAGES 65536
#define FILE_PAGES 1024
#define SHM_PAGES 256
#define HEAP_PAGES 512
#define SHM "/dev/shm/wander"

enum kind { NONE, ANONYMOUS, PRIVATE, SHARED, SHM_FILE };
enum { DONTFORK = 1 };

struct page {
	uint8_t kind, protection, advice;
	/* Of what is mapped of a file, which page of it. */
	uint32_t place;
	/* What its bytes are made from, and of one word of it; 0 is zero. */
	uint32_t stamp, poke;
};

static struct page model[MOST_PAGES], heap[HEAP_PAGES];
static uint32_t shm_stamp[SHM_PAGES];
static size_t pages, heap_pages;
static char *heap_start;
static uint64_t state;
static uint32_t last_stamp = FILE_PAGES;
static int file, shm, is_child, to_child = -1, from_child = -1;
static pid_t child;
static unsigned long done;
static char wrong[512], directory[PATH_MAX];

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static uint64_t draw(void)
{
	return mix(state += 0x9e3779b97f4a7c15ull);
}

static size_t below(size_t most)
{
	return draw() % most;
}

static void die(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	if (!wrong[0])
		vsnprintf(wrong, sizeof(wrong), format, list);
	va_end(list);
}

/* --- contents */

static void make(uint32_t stamp, uint32_t poke, uint64_t *into)
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

static void check_areas(void)
{
	char difference[256];
	/* A restore in the middle of the list loses the place in it. */
	if (compare_areas(difference, sizeof(difference)) && compare_areas(difference, sizeof(difference)))
		die("%s: %s", is_child ? "child" : "program", difference);
}

static size_t check(void)
{
	check_areas();
	int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	size_t checked = check_range(model, pages, ARENA, memory);
	checked += check_range(heap, heap_pages, heap_start, memory);
	close(memory);
	return checked;
}

/* --- operations */

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

struct range {
	size_t start, count;
};

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

/* --- the child */

static int whole_read(int from, void *into, size_t bytes)
{
	ssize_t got;
	while ((got = read(from, into, bytes)) < 0 && errno == EINTR)
		;
	return got == (ssize_t)bytes;
}

static void operate(uint64_t count);

struct task {
	uint64_t seed, count;
};

static void live_as_child(int in, int out)
{
	struct task task;
	for (size_t at = 0; at < pages; at++) {
		if (model[at].advice & DONTFORK)
			model[at] = (struct page){ 0 };
	}
	while (whole_read(in, &task, sizeof(task))) {
		state = task.seed;
		check();
		operate(task.count);
		check();
		if (write(out, wrong, sizeof(wrong)) != sizeof(wrong))
			break;
	}
	_exit(0);
}

static void end_child(void)
{
	close(to_child);
	close(from_child);
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	child = 0;
}

static void do_child(void)
{
	int in[2], out[2];
	if (is_child || below(4))
		return;
	if (child) {
		end_child();
		return;
	}
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) {
		die("pipe: %s", strerror(errno));
		return;
	}
	child = fork();
	if (child == 0) {
		is_child = 1;
		close(in[1]);
		close(out[0]);
		live_as_child(in[0], out[1]);
	}
	close(in[0]);
	close(out[1]);
	to_child = in[1];
	from_child = out[0];
	if (child < 0)
		die("fork: %s", strerror(errno));
}

static void have_child_operate(uint64_t count)
{
	struct task task = { draw(), count };
	char text[sizeof(wrong)];
	if (write(to_child, &task, sizeof(task)) != sizeof(task) || !whole_read(from_child, text, sizeof(text)))
		die("the child does not answer: %s", strerror(errno));
	else if (text[0])
		die("%s", text);
}

static void operate(uint64_t count)
{
	static void (*const known[])(void) = { do_map,	   do_map,     do_unmap,     do_write,	 do_write,   do_write,	do_write,
					       do_protect, do_protect, do_give_back, do_advise, do_move, do_move, do_heap,
					       do_child };
	for (; count && !wrong[0]; count--, done++)
		known[below(sizeof(known) / sizeof(*known))]();
}

/* --- orders */

static int open_at(const char *name, int flags)
{
	char path[PATH_MAX + 16];
	int opened;
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	while ((opened = open(path, flags | O_CLOEXEC, 0600)) < 0 && errno == EINTR)
		;
	return opened;
}

static void answer(const char *text)
{
	int to = open_at("answer", O_WRONLY);
	if (write(to, text, strlen(text)) < 0)
		_exit(3);
	close(to);
}

static void begin(void)
{
	static uint64_t page[WORDS];
	file = open_at("file", O_RDWR | O_CREAT | O_TRUNC);
	shm = open(SHM, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (file < 0 || shm < 0 || ftruncate(shm, SHM_PAGES * PAGE))
		die("making files: %s", strerror(errno));
	for (size_t at = 0; at < FILE_PAGES; at++) {
		make(1 + at, 0, page);
		if (write(file, page, PAGE) != (ssize_t)PAGE)
			die("writing a file: %s", strerror(errno));
	}
	close(file);
	file = open_at("file", O_RDONLY);
	/* The C library has its own memory from the heap before what is ours. */
	check_areas();
	uintptr_t end = (uintptr_t)sbrk(0), start = (end + PAGE - 1) / PAGE * PAGE;
	if (sbrk(start - end) == (void *)-1)
		die("sbrk: %s", strerror(errno));
	heap_start = (char *)start;
}

int main(int count, char **words)
{
	if (count != 4)
		return 2;
	snprintf(directory, sizeof(directory), "%s", words[1]);
	state = strtoull(words[2], NULL, 10);
	pages = strtoul(words[3], NULL, 10);
	if (pages > MOST_PAGES)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	begin();
	for (;;) {
		char order[128] = "", text[sizeof(wrong) + 64];
		unsigned long long seed, count;
		int from = open_at("command", O_RDONLY);
		if (read(from, order, sizeof(order) - 1) < 0)
			return 3;
		close(from);
		if (strncmp(order, "end", 3) == 0)
			break;
		if (sscanf(order, "go %llu %llu", &seed, &count) != 2)
			continue;
		state = seed;
		size_t checked = check();
		operate(count);
		if (child && !wrong[0])
			have_child_operate(count);
		checked += check();
		if (wrong[0])
			snprintf(text, sizeof(text), "%s\n", wrong);
		else
			snprintf(text, sizeof(text), "ok %lu %zu\n", done, checked);
		answer(text);
	}
	if (child)
		end_child();
	answer("ended\n");
	return 0;
}
