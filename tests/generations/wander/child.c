/* A child, forked now and then, that does the same with the memory that it was forked with. */
#include "wander.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int to_child = -1, from_child = -1;
static pid_t child;

int has_child(void)
{
	return child > 0;
}

static int whole_read(int from, void *into, size_t bytes)
{
	ssize_t got;
	while ((got = read(from, into, bytes)) < 0 && errno == EINTR)
		;
	return got == (ssize_t)bytes;
}

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

void end_child(void)
{
	close(to_child);
	close(from_child);
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	child = 0;
}

void do_child(void)
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

void have_child_operate(uint64_t count)
{
	struct task task = { draw(), count };
	char text[sizeof(wrong)];
	if (write(to_child, &task, sizeof(task)) != sizeof(task) || !whole_read(from_child, text, sizeof(text)))
		die("the child does not answer: %s", strerror(errno));
	else if (text[0])
		die("%s", text);
}
