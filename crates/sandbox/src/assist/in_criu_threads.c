/* What CRIU asks by `ptrace` about a thread that stands, and what it has done to one; see answers.rs. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "in_criu.h"

#define ARCH_PRCTL 30

/* What the tracer has told of a thread that stands; NULL if nothing. */
static struct thread *known_thread(uint32_t pid)
{
	static uint32_t last;
	uint32_t count = shared->thread_count;
	for (uint32_t n = 0; n < count && count <= THREADS; n++) {
		uint32_t at = (last + n) % count;
		if (shared->thread_ids[at] == pid) {
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
	/* Its second argument is where the answer goes, and the third what is asked. */
	if (request == ARCH_PRCTL) {
		key = (uintptr_t)data;
		data = (void *)(uintptr_t)address;
		address = 0;
	}
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
			size_t length = part->iov_len < answer->length ? part->iov_len : answer->length;
			/* The kernel wants whole registers, and gives as many as there is room for. */
			if (part->iov_len % sizeof(uint64_t))
				return 0;
			memcpy(part->iov_base, bytes, length);
			part->iov_len = length;
		} else if (data && answer->result >= 0) {
			memcpy(data, bytes, answer->length);
		}
		*done = answer->result;
		shared->answered++;
		return 1;
	}
	return 0;
}

/* Whether a request is left with the tracer, which does it before anything else that it is asked: nothing comes of it before the
 * thread goes on. One that is not traced, or of which the tracer was not told, has none of that. */
static int post(uint32_t request, uint32_t pid, uint64_t address, void *data)
{
	uint32_t count = shared->posted_count;
	const void *bytes = NULL;
	struct posted posted = {.request = request, .thread = pid, .address = address};
	switch (request) {
	case PTRACE_INTERRUPT:
		break;
	case PTRACE_SETOPTIONS:
		posted.data = (uintptr_t)data;
		break;
	case PTRACE_SETSIGMASK:
		bytes = data;
		posted.length = address;
		break;
	case PTRACE_SETREGSET:
		bytes = ((struct iovec *)data)->iov_base;
		posted.length = ((struct iovec *)data)->iov_len;
		break;
	default:
		return 0;
	}
	struct thread *thread = known_thread(pid);
	if (count)
		posted.offset = shared->posted[count - 1].offset + shared->posted[count - 1].length;
	if (!thread || count == POSTED || posted.length > POSTED_ROOM - posted.offset)
		return 0;
	/* What was told of it is so no more. */
	if (bytes) {
		thread->count = 0;
		memcpy(shared->posted_bytes + posted.offset, bytes, posted.length);
	}
	shared->posted[count] = posted;
	shared->posted_count = count + 1;
	shared->answered++;
	return 1;
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
	} else if (is_criu() && post(request, pid, address, data)) {
		done = 0;
	} else {
		done = syscall(SYS_ptrace, (long)request, (long)pid, address, data);
	}
	if (done < 0 || !peeks)
		return done;
	errno = 0;
	return word;
}
