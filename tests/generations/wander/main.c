/* The orders that the program takes.
 *
 * It waits at the named pipe DIRECTORY/command for words:
 *
 *   go SEED COUNT     compares all, does COUNT random operations, compares all
 *   end               ends
 *
 * and answers each at DIRECTORY/answer with a line, `ok OPERATIONS PAGES` or what was wrong. It holds neither pipe while
 * it works or waits, so that it can be taken at any moment. Where it is to be a framework's program (REKINDLE_FRAMEWORK),
 * it first does some operations, says that it is ready, and waits for its app.
 */
#include "wander.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHM "/dev/shm/wander"
/* What a framework's program does before it is ready. */
#define AHEAD 40

static char directory[PATH_MAX];

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

/* Says that it is ready for an app, and waits for that. */
static void wait_for_app(const char *place)
{
	char path[PATH_MAX], text[4096];
	snprintf(path, sizeof(path), "%s/ready", place);
	int ready = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	close(ready);
	snprintf(path, sizeof(path), "%s/app", place);
	int app;
	while ((app = open(path, O_RDONLY | O_CLOEXEC)) < 0 && errno == EINTR)
		;
	ssize_t got;
	while ((got = read(app, text, sizeof(text))) > 0 || (got < 0 && errno == EINTR))
		;
	if (ready < 0 || app < 0 || got < 0)
		die("waiting for an app: %s", strerror(errno));
	close(app);
}

int main(int count, char **words)
{
	const char *framework = getenv("REKINDLE_FRAMEWORK");
	if (count != 4 && count != 5)
		return 2;
	snprintf(directory, sizeof(directory), "%s", words[1]);
	state = strtoull(words[2], NULL, 10);
	pages = strtoul(words[3], NULL, 10);
	if (pages > MOST_PAGES)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	begin();
	if (count == 5)
		gpu_begin();
	if (framework) {
		operate(AHEAD);
		wait_for_app(framework);
	}
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
		if (has_child() && !wrong[0])
			have_child_operate(count);
		checked += check();
		if (wrong[0])
			snprintf(text, sizeof(text), "%s\n", wrong);
		else
			snprintf(text, sizeof(text), "ok %lu %zu\n", done, checked);
		answer(text);
	}
	if (has_child())
		end_child();
	answer("ended\n");
	return 0;
}
