/* Has files mapped in several ways, and threads that differ, and says whether both are as they were made.
 *
 * shape DIRECTORY
 *
 * Of each file two areas lie side by side, mapped by descriptors with different rights. Each thread has a signal mask, a name
 * and floating-point numbers of its own. One line is printed every twentieth of a second. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 24
#define THREADS 20
#define PAGE 4096ul

static char *mapped[FILES];
static mode_t modes[FILES][2];
static atomic_int wrong;
static atomic_ulong rounds[THREADS];

static void is(int right, const char *what, long which)
{
	if (!right && !atomic_exchange(&wrong, 1))
		printf("wrong: %s %ld\n", what, which);
}

/* How the file of one page was opened, by the kernel's word. */
static mode_t link_mode(const char *page)
{
	char path[80];
	struct stat meta;
	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)page, (unsigned long)page + PAGE);
	return lstat(path, &meta) ? 0 : meta.st_mode & 0700;
}

static void map_file(const char *directory, int number)
{
	char path[4096], contents[2 * PAGE];
	snprintf(path, sizeof(path), "%s/file-%d", directory, number);
	memset(contents, 'a' + number, sizeof(contents));
	int both = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), one = open(path, O_RDONLY);
	if (both < 0 || one < 0 || write(both, contents, sizeof(contents)) != sizeof(contents))
		exit(2);
	/* The first is mapped by the one that may write, or by the other, in turns. */
	int first = number & 1 ? both : one, second = number & 1 ? one : both;
	char *at = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int shared = number & 2 ? MAP_SHARED : MAP_PRIVATE;
	if (mmap(at, PAGE, PROT_READ, shared | MAP_FIXED, first, 0) == MAP_FAILED ||
	    mmap(at + PAGE, PAGE, PROT_READ, shared | MAP_FIXED, second, 0) == MAP_FAILED)
		exit(3);
	mapped[number] = at;
	modes[number][0] = link_mode(at);
	modes[number][1] = link_mode(at + PAGE);
	if (modes[number][0] == modes[number][1])
		exit(4);
	close(both);
	close(one);
}

static void *thread(void *argument)
{
	long number = (long)argument;
	char name[16], now[16];
	sigset_t mask, found;
	volatile double sum = number + 0.5;
	snprintf(name, sizeof(name), "shape-%ld", number);
	prctl(PR_SET_NAME, name);
	sigemptyset(&mask);
	sigaddset(&mask, SIGRTMIN + 3 + number);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	for (;;) {
		for (int turn = 0; turn < 1000; turn++)
			sum = sum * 3 - sum * 2;
		is(sum == number + 0.5, "numbers of thread", number);
		pthread_sigmask(SIG_SETMASK, NULL, &found);
		is(!memcmp(&mask, &found, sizeof(mask)), "signal mask of thread", number);
		is(!prctl(PR_GET_NAME, now) && !strcmp(name, now), "name of thread", number);
		rounds[number]++;
		usleep(1000 + 100 * number);
	}
	return NULL;
}

int main(int count, char **words)
{
	if (count != 2)
		return 1;
	for (int number = 0; number < FILES; number++)
		map_file(words[1], number);
	for (long number = 0; number < THREADS; number++) {
		pthread_t one;
		if (pthread_create(&one, NULL, thread, (void *)number))
			return 5;
	}
	for (;;) {
		unsigned long before[THREADS];
		for (int number = 0; number < THREADS; number++)
			before[number] = rounds[number];
		usleep(50000);
		for (int number = 0; number < FILES; number++)
			for (int page = 0; page < 2; page++) {
				is(mapped[number][page * PAGE] == 'a' + number, "contents of file", number);
				is(link_mode(mapped[number] + page * PAGE) == modes[number][page], "rights of file", number);
			}
		/* Each goes on, however busy the machine is. */
		for (int number = 0; number < THREADS; number++)
			while (rounds[number] == before[number])
				usleep(1000);
		puts(wrong ? "wrong" : "right");
		fflush(stdout);
	}
}
