/* System calls that wait, in the first thread of a process and in another one.
 *
 * waits GO: a process for each call, of which two threads are in it. Prints `ready`, waits for the file, then prints `ok`, or which
 * calls have ended. A last process waits with something in its vector registers. With UNTIL there are no calls that wait for a
 * time from their beginning. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REGISTERS 16

static const char *const names[] = {"poll", "poll for a time", "nanosleep", "clock_nanosleep", "clock_nanosleep until then",
				    "futex", "futex until then", "select", "ppoll", "read", "accept", "pause", "epoll_wait"};
enum { CALLS = sizeof(names) / sizeof(*names) };

/* What has ended, shared by all processes: the error, or a number beyond all errors. */
static volatile int *ended;
static int input[2], over[2];
static const struct timespec far = {1000, 0};

static struct timespec then(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	time.tv_sec += far.tv_sec;
	return time;
}

static void make(int call)
{
	struct pollfd polled = {input[0], POLLIN, 0};
	struct timespec until = then();
	fd_set set;
	int word = 0, listener;
	switch (call) {
	case 0: poll(&polled, 1, -1); break;
#ifndef UNTIL
	case 1: poll(&polled, 1, 1000000); break;
	case 2: syscall(SYS_nanosleep, &far, NULL); break;
	case 3: syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &far, NULL); break;
#else
	case 1: case 2: case 3: pause(); break;
#endif
	case 4: syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL); break;
	case 5: syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0); break;
	case 6: syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0, &until, NULL, FUTEX_BITSET_MATCH_ANY); break;
	case 7:
		FD_ZERO(&set);
		FD_SET(input[0], &set);
		select(input[0] + 1, &set, NULL, NULL, NULL);
		break;
	case 8: ppoll(&polled, 1, NULL, NULL); break;
	case 9: read(input[0], &word, 1); break;
	case 10:
		listener = socket(AF_UNIX, SOCK_STREAM, 0);
		bind(listener, &(struct sockaddr){AF_UNIX}, sizeof(sa_family_t));
		listen(listener, 1);
		accept(listener, NULL, NULL);
		break;
	case 11: pause(); break;
	case 12: epoll_wait(epoll_create1(0), &(struct epoll_event){0}, 1, -1); break;
	}
	ended[call] = errno ? errno : 1000;
}

static void *thread(void *call)
{
	make((int)(intptr_t)call);
	return NULL;
}

/* Waits until all is over, and compares its vector registers with what they had. */
static int vectors(void)
{
	static unsigned char given[REGISTERS][16], found[REGISTERS][16];
	struct pollfd polled = {over[0], POLLIN, 0};
	long result = SYS_poll;
	for (int number = 0; number < REGISTERS; number++)
		memset(given[number], number + 1, 16);
#define EACH(WHAT)                                                                                                                                   \
	WHAT(0) WHAT(1) WHAT(2) WHAT(3) WHAT(4) WHAT(5) WHAT(6) WHAT(7) WHAT(8) WHAT(9) WHAT(10) WHAT(11) WHAT(12) WHAT(13) WHAT(14) WHAT(15)
#define LOAD(N) "movups " #N "*16(%[given]), %%xmm" #N "\n"
#define STORE(N) "movups %%xmm" #N ", " #N "*16(%[found])\n"
#define CHANGED(N) "xmm" #N,
	register long first __asm__("rdi") = (long)&polled, second __asm__("rsi") = 1, third __asm__("rdx") = -1;
	__asm__ volatile(EACH(LOAD) "syscall\n" EACH(STORE)
			 : "+a"(result)
			 : [given] "b"(given), [found] "r"(found), "r"(first), "r"(second), "r"(third)
			 : EACH(CHANGED) "rcx", "r11", "memory");
	return result == 1 && !memcmp(given, found, sizeof(given));
}

int main(int count, char **words)
{
	if (count != 2)
		return 2;
	ended = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (pipe(input) || pipe(over))
		return 2;
	for (intptr_t call = 0; call <= CALLS; call++) {
		if (fork())
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pthread_t other;
		if (call == CALLS)
			ended[call] = vectors() ? -1 : -2;
		else if (!pthread_create(&other, NULL, thread, (void *)call))
			make(call), pause();
		return 0;
	}
	usleep(300000);
	puts("ready"), fflush(stdout);
	while (access(words[1], F_OK))
		usleep(10000);
	int is_wrong = 0;
	for (int call = 0; call < CALLS; call++)
		if (ended[call])
			printf("%s: %s\n", names[call], strerror(ended[call])), is_wrong = 1;
	write(over[1], "x", 1);
	while (!ended[CALLS])
		usleep(10000);
	if (ended[CALLS] != -1)
		puts("vector registers have something else"), is_wrong = 1;
	puts(is_wrong ? "wrong" : "ok");
	return is_wrong;
}
