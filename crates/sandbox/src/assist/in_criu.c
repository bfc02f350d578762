/* Comes before the C library in a CRIU that dumps, and does some of its calls in a shorter way; see mod.rs. Whatever cannot
 * be done so is the kernel's to do, as without it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The layout is that of `Shared` in mod.rs. */
#define PROCESSES 16
#define THREADS 512
#define ANSWERS 32
#define ROOM 20000

struct answer {
	uint32_t request, length;
	uint64_t address, key;
	int64_t result;
	uint64_t offset;
};

struct thread {
	_Atomic uint32_t thread, count;
	struct answer answers[ANSWERS];
	uint8_t bytes[ROOM];
};

struct shared {
	_Atomic uint32_t criu, hides_unwritten, answered, unused;
	struct {
		_Atomic uint32_t pid, is_used;
		_Atomic uint64_t at, length;
	} areas[PROCESSES];
	struct thread threads[THREADS];
};

static struct shared *shared;

__attribute__((constructor)) static void load(void)
{
	const char *number = getenv("REKINDLE_ASSIST");
	struct stat meta;
	if (!number || fstat(atoi(number), &meta) || meta.st_size < (off_t)sizeof(*shared))
		return;
	void *at = mmap(NULL, meta.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(number), 0);
	if (at == MAP_FAILED)
		return;
	shared = at;
}

/* Children of CRIU's have the memory too, and are nobody that it is for. */
static int is_criu(void)
{
	return shared && shared->criu == (uint32_t)getpid();
}

/* The kernel's `pm_scan_arg` and `page_region`. */
struct region {
	uint64_t start, end, categories;
};
struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t inverted, mask, any_of, wanted;
};
#define PAGEMAP_SCAN 0xc0606610ul
/* The kernel does not look at this bit of a request; the filter leaves alone what has it. */
#define UNTOLD (1ul << 32)
#define PROTECTABLE 1ul
#define WRITTEN 2ul
#define PRESENT 8ul
#define SWAPPED 16ul

/* CRIU's look for pages, without those that were copied before the program stood still. */
static int scan(int fd, struct scan *asked)
{
	struct scan ours = *asked;
	if (asked->flags || asked->any_of != (PRESENT | SWAPPED))
		return syscall(SYS_ioctl, fd, PAGEMAP_SCAN | UNTOLD, asked);
	ours.wanted |= PROTECTABLE | WRITTEN;
	long found = syscall(SYS_ioctl, fd, PAGEMAP_SCAN | UNTOLD, &ours);
	if (found < 0)
		return -1;
	struct region *regions = (struct region *)(uintptr_t)asked->vec;
	int told = 0;
	for (long i = 0; i < found; i++) {
		struct region region = regions[i];
		if ((region.categories & (PROTECTABLE | WRITTEN)) == PROTECTABLE)
			continue;
		region.categories &= asked->wanted;
		regions[told++] = region;
	}
	asked->walk_end = ours.walk_end;
	return told;
}

int ioctl(int fd, unsigned long request, void *argument)
{
	if (request == PAGEMAP_SCAN && is_criu() && shared->hides_unwritten)
		return scan(fd, argument);
	return syscall(SYS_ioctl, fd, request, argument);
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

/* The process whose directory this is. */
static uint32_t process(int directory)
{
	char link[64], path[64];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", directory);
	ssize_t length = readlink(link, path, sizeof(path) - 1);
	if (length <= 0)
		return 0;
	path[length] = 0;
	return strncmp(path, "/proc/", 6) ? 0 : atoi(path + 6);
}

/* A file that describes a process's areas, for which the kernel need not look at each of its pages; -1 if there is none. */
static int described_areas(int directory)
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

int openat64(int directory, const char *path, int flags, ...)
{
	va_list more;
	va_start(more, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
	va_end(more);
	int fd = -1;
	if (directory >= 0 && !strcmp(path, "smaps") && is_criu())
		fd = described_areas(directory);
	return fd >= 0 ? fd : syscall(SYS_openat, directory, path, flags, (long)mode);
}

/* What the tracer has told of a thread that stands; NULL if nothing. */
static struct thread *known_thread(uint32_t pid)
{
	static uint32_t last;
	for (uint32_t n = 0; n < THREADS; n++) {
		uint32_t at = (last + n) % THREADS;
		if (shared->threads[at].thread == pid) {
			last = at;
			return &shared->threads[at];
		}
	}
	return NULL;
}

/* Whether a request was answered before: then `done` is what it returns, and where it asks for something to be written that is
 * done. */
static int answered(uint32_t request, uint32_t pid, uint64_t address, void *data, long *done)
{
	struct thread *thread = known_thread(pid);
	uint32_t count = thread ? thread->count : 0;
	uint64_t key = 0;
	if (request == PTRACE_GETSIGINFO || request == PTRACE_GETFPREGS)
		address = 0;
	if (request == PTRACE_SECCOMP_GET_METADATA && address == 16)
		key = *(uint64_t *)data;
	if (request == PTRACE_PEEKSIGINFO) {
		struct __ptrace_peeksiginfo_args *wanted = (void *)(uintptr_t)address;
		if (wanted->off)
			return 0;
		key = wanted->flags;
		address = 0;
	}
	for (uint32_t n = 0; n < count && n < ANSWERS; n++) {
		struct answer *answer = &thread->answers[n];
		if (answer->request != request || answer->address != address || answer->key != key)
			continue;
		const uint8_t *bytes = thread->bytes + answer->offset;
		if (request == PTRACE_GETREGSET && answer->result >= 0) {
			struct iovec *part = data;
			if (part->iov_len < answer->length)
				return 0;
			memcpy(part->iov_base, bytes, answer->length);
			part->iov_len = answer->length;
		} else if (data && answer->result >= 0) {
			memcpy(data, bytes, answer->length);
		}
		*done = answer->result;
		shared->answered++;
		return 1;
	}
	return 0;
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list more;
	va_start(more, request);
	pid_t pid = va_arg(more, pid_t);
	uint64_t address = (uintptr_t)va_arg(more, void *);
	void *data = va_arg(more, void *);
	va_end(more);
	int peeks = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
	long word = 0, done;
	if (peeks)
		data = &word;
	if (is_criu() && answered(request, pid, address, data, &done)) {
		if (done < 0) {
			errno = -done;
			done = -1;
		}
	} else {
		done = syscall(SYS_ptrace, (long)request, (long)pid, address, data);
	}
	if (done < 0 || !peeks)
		return done;
	errno = 0;
	return word;
}
