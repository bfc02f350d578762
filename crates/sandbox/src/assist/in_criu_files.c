/* What CRIU asks about the files that a process has mapped. For each it opens `map_files`, and reads of its own descriptor
 * what `statx` says at once; and for each area it asks for the link's mode; see links.rs. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "in_criu.h"

/* A descriptor that is none of the kernel's: what it reads is `info`. */
#define OURS 0x3fffffff

/* The directory `map_files` that CRIU goes through, its number, and its process's place; -1 while there is none. */
static int links = -1;
static uint64_t links_inode;
static uint32_t linked;
static uint64_t next;
/* CRIU's own directory in /proc. */
static int own = -1;
/* The file that it has opened there. */
static int mapped = -1;
/* What it is to read of that, and how much of it was read. */
static char info[128];
static size_t info_length, info_read;
static int is_info_open;
/* CRIU may read by other ways than these. So the first is the kernel's, and only looked at. */
static int watched = -1, was_read, is_read_here;

/* The answer to `fdinfo` of the descriptor by which the file was opened, whatever that is of by now; 0 if it is the kernel's to
 * give. The kernel says more of what is no regular file. */
static int describe_mapped(void)
{
	struct statx meta;
	unsigned wanted = STATX_MNT_ID | STATX_TYPE;
	int flags = fcntl(mapped, F_GETFL), of_descriptor = fcntl(mapped, F_GETFD);
	if (is_info_open || flags < 0 || of_descriptor < 0)
		return 0;
	if (statx(mapped, "", AT_EMPTY_PATH, wanted, &meta) || (meta.stx_mask & wanted) != wanted || !S_ISREG(meta.stx_mode))
		return 0;
	if (of_descriptor & FD_CLOEXEC)
		flags |= O_CLOEXEC;
	off_t at = flags & O_PATH ? 0 : lseek(mapped, 0, SEEK_CUR);
	info_length = snprintf(info, sizeof(info), "pos:\t%lld\nflags:\t0%o\nmnt_id:\t%llu\n", (long long)at, flags,
			       (unsigned long long)meta.stx_mnt_id);
	info_read = 0;
	is_info_open = 1;
	return 1;
}

static int opens_info(int directory, const char *path)
{
	return mapped >= 0 && !strncmp(path, "fdinfo/", 7) && atoi(path + 7) == mapped && is_criu() &&
	       (directory == own || process(directory) == shared->criu);
}

/* Whether a name is that of an area's link. */
static int is_area(const char *name, uint64_t *first, uint64_t *last)
{
	char *end;
	*first = strtoull(name, &end, 16);
	*last = *end == '-' ? strtoull(end + 1, &end, 16) : 0;
	return *last && !*end;
}

/* CRIU has begun to go through a process's areas. */
static void begin_links(int directory, int fd)
{
	uint32_t pid = process(directory);
	links = -1;
	for (uint32_t at = 0; pid && at < PROCESSES; at++) {
		/* Only where areas are those that were described are links theirs. */
		if (shared->areas[at].pid != pid || !shared->areas[at].is_used)
			continue;
		links = fd;
		links_inode = inode(fd);
		linked = at;
		next = 0;
	}
}

int openat64(int directory, const char *path, int flags, ...)
{
	va_list more;
	va_start(more, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
	va_end(more);
	int fd = -1;
	uint64_t first, last;
	if (directory >= 0 && !strcmp(path, "smaps") && is_criu())
		fd = described_areas(directory);
	if (fd >= 0)
		return fd;
	int is_info = opens_info(directory, path);
	if (is_info && is_read_here && describe_mapped())
		return OURS;
	fd = syscall(SYS_openat, directory, path, flags, (long)mode);
	if (fd < 0)
		return fd;
	if (is_info) {
		own = directory;
		watched = fd;
		was_read = 0;
	} else if (directory >= 0 && !strcmp(path, "map_files") && is_criu()) {
		begin_links(directory, fd);
	} else if (directory >= 0 && directory == links && (flags == O_PATH || flags == O_RDONLY) && is_area(path, &first, &last)) {
		mapped = fd;
	}
	return fd;
}

ssize_t read(int fd, void *buffer, size_t length)
{
	if (fd == OURS) {
		size_t left = info_length - info_read, now = left < length ? left : length;
		memcpy(buffer, info + info_read, now);
		info_read += now;
		return now;
	}
	was_read |= fd == watched;
	return syscall(SYS_read, fd, buffer, length);
}

int close(int fd)
{
	if (fd == OURS) {
		is_info_open = 0;
		return 0;
	}
	if (fd >= 0 && fd == watched) {
		is_read_here |= was_read;
		watched = -1;
	}
	forget_pages(fd);
	if (fd == mapped)
		mapped = -1;
	if (fd == own)
		own = -1;
	if (fd == links)
		links = -1;
	return syscall(SYS_close, fd);
}

/* The link of an area, if it is known; areas are asked for in their order. */
static struct link *known_link(const char *name)
{
	uint64_t first, last, count = shared->areas[linked].link_count;
	struct link *all = (struct link *)((char *)shared + shared->areas[linked].links);
	if (!is_area(name, &first, &last))
		return NULL;
	for (; next < count && all[next].start < first; next++)
		;
	return next < count && all[next].start == first && all[next].end == last ? &all[next] : NULL;
}

int fstatat64(int directory, const char *path, struct stat64 *meta, int flags)
{
	if (directory >= 0 && directory == links && flags == AT_SYMLINK_NOFOLLOW && is_criu() && inode(links) == links_inode) {
		struct link *link = known_link(path);
		uint32_t mode = link ? (uint32_t)link->mode : 0;
		shared->linked += mode != 0;
		if (mode == NO_LINK) {
			errno = ENOENT;
			return -1;
		}
		if (mode) {
			memset(meta, 0, sizeof(*meta));
			meta->st_mode = mode;
			return 0;
		}
	}
	return syscall(SYS_newfstatat, directory, path, meta, flags);
}
