/* A program of the shape of a large framework's, which goes on.
 *
 * program LIBRARIES FILES ANONYMOUS THREADS DESCRIPTORS
 *
 * FILES files in the directory LIBRARIES are mapped as the loader maps libraries: four areas each, of which the last was
 * written to. ANONYMOUS areas of 256 KB that the kernel does not join have contents. THREADS threads wait. Of pairs of Unix sockets,
 * pipes, event counters, files and listening sockets there are DESCRIPTORS descriptors, most of them in an epoll. A line is
 * printed every tenth of a second. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define PAGE 4096ul
#define PART (16 * PAGE)

static void *waits(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

static int map_library(const char *directory, long number)
{
	static const int protections[] = {PROT_READ, PROT_READ | PROT_EXEC, PROT_READ, PROT_READ | PROT_WRITE};
	char path[4096], contents[4 * PART];
	snprintf(path, sizeof(path), "%s/lib%ld.so.1", directory, number);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0755);
	memset(contents, number & 255 ? number & 255 : 1, sizeof(contents));
	if (fd < 0 || write(fd, contents, sizeof(contents)) != sizeof(contents))
		return -1;
	char *room = mmap(NULL, 4 * PART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int part = 0; part < 4; part++) {
		char *at = mmap(room + part * PART, PART, protections[part], MAP_PRIVATE | MAP_FIXED, fd, part * PART);
		if (at == MAP_FAILED)
			return -1;
		*(volatile char *)at;
		if (part == 3)
			memset(at, 7, 2 * PAGE);
	}
	close(fd);
	return 0;
}

static int map_anonymous(void)
{
	char *area = mmap(NULL, 65 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED || mprotect(area + 64 * PAGE, PAGE, PROT_NONE))
		return -1;
	memset(area, 5, 64 * PAGE);
	return 0;
}

/* Opens some more descriptors, of a kind by its turn; how many. */
static int open_some(int turn, int epoll)
{
	int fds[2] = {-1, -1}, count = 1;
	char path[64];
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	switch (turn % 8) {
	case 0:
	case 1:
		count = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) ? 0 : 2;
		break;
	case 2:
	case 3:
		count = pipe2(fds, O_CLOEXEC | O_NONBLOCK) ? 0 : 2;
		break;
	case 4:
	case 5:
		fds[0] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		break;
	case 6:
		snprintf(path, sizeof(path), "/proc/self/exe");
		fds[0] = open(path, O_RDONLY | O_CLOEXEC);
		return fds[0] < 0 ? 0 : 1;
	default:
		fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (bind(fds[0], (struct sockaddr *)&any, sizeof(any)) || listen(fds[0], 8))
			return 0;
	}
	for (int at = 0; at < count; at++) {
		struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[at]};
		if (fds[at] < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fds[at], &event))
			return 0;
	}
	return count;
}

int main(int count, char **words)
{
	if (count != 6)
		return 2;
	for (long at = 0; at < atol(words[2]); at++)
		if (map_library(words[1], at))
			return 3;
	for (long at = 0; at < atol(words[3]); at++)
		if (map_anonymous())
			return 4;
	for (long at = atol(words[4]); at > 1; at--) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, waits, NULL))
			return 5;
	}
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	for (int made = 0, turn = 0; made < atoi(words[5]); turn++) {
		int more = open_some(turn, epoll);
		if (more <= 0)
			return 6;
		made += more;
	}
	for (;;) {
		puts("goes on");
		fflush(stdout);
		usleep(100000);
	}
}
