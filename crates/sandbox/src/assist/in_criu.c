/* Comes before the C library in a CRIU that dumps, and does some of its calls in a shorter way; see mod.rs. Whatever cannot
 * be done so is the kernel's to do, as without it. Here are the descriptions of areas; see areas.rs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "in_criu.h"

struct shared *shared;
/* Our pid, in a page that is empty in every child: asking the kernel each time takes as long as much of what is spared. */
static const pid_t *own_pid;

__attribute__((constructor)) static void load(void)
{
	const char *number = getenv("REKINDLE_ASSIST");
	struct stat meta;
	if (!number || fstat(atoi(number), &meta) || meta.st_size < (off_t)sizeof(*shared))
		return;
	void *at = mmap(NULL, meta.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(number), 0);
	pid_t *pid = mmap(NULL, sizeof(*pid), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || pid == MAP_FAILED || madvise(pid, sizeof(*pid), MADV_WIPEONFORK))
		return;
	*pid = getpid();
	own_pid = pid;
	shared = at;
}

int is_criu(void)
{
	return shared && *own_pid && shared->criu == (uint32_t)*own_pid;
}

/* So often, 50 us each: about as long as CRIU would take to find it out. */
#define PATIENCE 200

int is_found(const look_ahead *look)
{
	struct timespec moment = {.tv_nsec = 50000};
	for (int n = 0; *look == LOOKED_AT && n < PATIENCE; n++)
		nanosleep(&moment, NULL);
	return *look == SO;
}

/* All of a file; NULL if it cannot be had. */
static char *contents(int directory, const char *name, size_t *length)
{
	int fd = syscall(SYS_openat, directory, name, O_RDONLY | O_CLOEXEC, 0);
	size_t room = 1 << 20, have = 0;
	char *text = fd < 0 ? NULL : malloc(room);
	while (text) {
		ssize_t read_now = read(fd, text + have, room - have);
		if (read_now == 0)
			break;
		have += read_now > 0 ? read_now : 0;
		char *larger = read_now < 0 ? NULL : have < room ? text : realloc(text, room *= 2);
		if (!larger)
			free(text);
		text = larger;
	}
	if (fd >= 0)
		close(fd);
	*length = have;
	return text;
}

/* Whether areas that were described before are those that there are: each has one line of `maps`, then one of flags. */
static int agree(const char *described, size_t length, const char *maps, size_t maps_length)
{
	const char *end = described + length, *maps_end = maps + maps_length;
	while (described < end && maps < maps_end) {
		const char *line = memchr(maps, '\n', maps_end - maps);
		size_t line_length = line ? (size_t)(line + 1 - maps) : 0;
		if (!line || (size_t)(end - described) < line_length || memcmp(described, maps, line_length))
			return 0;
		const char *flags = memchr(described + line_length, '\n', end - described - line_length);
		if (!flags)
			return 0;
		described = flags + 1;
		maps += line_length;
	}
	return described == end && maps == maps_end;
}

uint32_t process(int directory)
{
	char link[64], path[64];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", directory);
	ssize_t length = readlink(link, path, sizeof(path) - 1);
	if (length <= 0)
		return 0;
	path[length] = 0;
	return strncmp(path, "/proc/", 6) ? 0 : atoi(path + 6);
}

uint64_t inode(int fd)
{
	struct stat meta;
	return syscall(SYS_fstat, fd, &meta) ? 0 : meta.st_ino;
}

int described_areas(int directory)
{
	uint32_t pid = process(directory);
	int found = 0;
	while (found < PROCESSES && (!pid || shared->areas[found].pid != pid))
		found++;
	if (found == PROCESSES)
		return -1;
	const char *described = (const char *)shared + shared->areas[found].at;
	size_t length = shared->areas[found].length, maps_length;
	char *maps = contents(directory, "maps", &maps_length);
	int same = maps && agree(described, length, maps, maps_length);
	free(maps);
	if (!same)
		return -1;
	int fd = memfd_create("smaps", MFD_CLOEXEC);
	for (size_t done = 0; fd >= 0 && done < length;) {
		ssize_t wrote = write(fd, described + done, length - done);
		if (wrote <= 0) {
			close(fd);
			return -1;
		}
		done += wrote;
	}
	if (fd >= 0 && lseek(fd, 0, SEEK_SET) == 0)
		shared->areas[found].is_used = 1;
	return fd;
}
