/* Waits for a signal that it handles, or for a time, and prints `interrupted`, or how long it has waited, in ms.
 *
 * signalled GO: for the signal if the file is not there, else for eight seconds. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static void caught(int number)
{
	(void)number;
}

int main(int count, char **words)
{
	if (count != 2)
		return 2;
	struct sigaction action = {.sa_handler = caught};
	sigaction(SIGUSR1, &action, NULL);
	puts("ready"), fflush(stdout);
	if (access(words[1], F_OK)) {
		pause();
		puts(errno == EINTR ? "interrupted" : "wrong");
		return 0;
	}
	struct timespec from, to;
	clock_gettime(CLOCK_MONOTONIC, &from);
	int failed = poll(NULL, 0, 8000);
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("%ld\n", failed ? -1 : (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000);
	return 0;
}
