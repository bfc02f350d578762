/* Comes before the C library in a CRIU that restores a program which uses tiles or protection keys; see mod.rs. CRIU lets go of
 * each thread by PTRACE_DETACH. Before it lets go of the first of a process all of them stand, about to do what they did: then
 * they are given what CRIU has not given them. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define GET_SIGNAL_MASK 0x420a
#define SET_SIGNAL_MASK 0x420b
#define SUSPEND_FILTERS (1 << 21)
#define ASK_FOR_LEAVE 0x1023
#define SHAPES 17
#define TILES 18
#define MOST_REGISTERS (16 << 10)
#define PARTS_AT 512
/* Of what is shared with mod.rs: that we are loaded, then the records. */
#define HEAD 8
/* `syscall`, and `tilezero %tmm0`, each before `int3`. */
#define CALL 0xcccccccccccc050full
#define USE_TILES 0xccccccc0497be2c4ull

struct record {
	int32_t process, thread;
	uint32_t kind, length;
};
/* Kinds of records beside that of a process which has leave to use tiles. */
#define TILES_OF_THREAD 2
#define KEYS 3

static int records = -1;

__attribute__((constructor)) static void load(void)
{
	const char *number = getenv("REKINDLE_PROCESSOR");
	uint64_t loaded = 1;
	if (number && pwrite(atoi(number), &loaded, sizeof(loaded), 0) == sizeof(loaded))
		records = atoi(number);
}

static long kernel(long request, pid_t thread, uint64_t address, void *data)
{
	return syscall(SYS_ptrace, request, (long)thread, address, data);
}

/* The vector registers of a thread; how many bytes. */
static size_t vectors(pid_t thread, uint8_t *registers)
{
	struct iovec part = {registers, MOST_REGISTERS};
	return kernel(PTRACE_GETREGSET, thread, NT_X86_XSTATE, &part) < 0 ? 0 : part.iov_len;
}

/* Has a thread run one instruction, from where it is about to go on, with these general registers, and leaves it standing there
 * with its memory as it was; 0 if it did, with the registers as they are then. */
static int run(pid_t thread, uint64_t instruction, struct user_regs_struct *general)
{
	uint64_t at = general->rip & ~7ull, before;
	if (kernel(PTRACE_PEEKTEXT, thread, at, &before) < 0 || kernel(PTRACE_POKETEXT, thread, at, (void *)instruction) < 0)
		return -1;
	general->rip = at;
	int status = 0, done = kernel(PTRACE_SETREGS, thread, 0, general) < 0 || kernel(PTRACE_CONT, thread, 0, NULL) < 0;
	while (!done && syscall(SYS_wait4, (long)thread, &status, __WALL, NULL) < 0)
		done = errno != EINTR;
	int stands = !done && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
	int left = kernel(PTRACE_POKETEXT, thread, at, (void *)before) < 0 || kernel(PTRACE_GETREGS, thread, 0, general) < 0;
	if (!stands || left) {
		errno = EIO;
		return -1;
	}
	return 0;
}

/* The same, of a thread that goes on as if nothing had been; `result` is what a call gives. */
static int run_aside(pid_t thread, uint64_t instruction, struct user_regs_struct general, uint64_t *result)
{
	struct user_regs_struct own;
	uint64_t mask, all = ~0ull;
	if (kernel(PTRACE_GETREGS, thread, 0, &own) < 0 || kernel(GET_SIGNAL_MASK, thread, sizeof(mask), &mask) < 0)
		return -1;
	general.rip = own.rip;
	general.cs = own.cs, general.ss = own.ss, general.ds = own.ds, general.es = own.es;
	general.fs = own.fs, general.gs = own.gs, general.fs_base = own.fs_base, general.gs_base = own.gs_base;
	general.rsp = own.rsp, general.eflags = own.eflags, general.orig_rax = ~0ull;
	kernel(SET_SIGNAL_MASK, thread, sizeof(all), &all);
	int done = run(thread, instruction, &general);
	int error = errno;
	*result = general.rax;
	if (kernel(PTRACE_SETREGS, thread, 0, &own) < 0 || kernel(SET_SIGNAL_MASK, thread, sizeof(mask), &mask) < 0)
		return -1;
	errno = error;
	return done;
}

/* Has a process make a system call, by its first thread; what that gives. */
static int64_t call(pid_t process, long number, uint64_t first, uint64_t second, uint64_t third, uint64_t fourth)
{
	struct user_regs_struct general = {.rax = number, .rdi = first, .rsi = second, .rdx = third, .r10 = fourth};
	uint64_t result;
	return run_aside(process, CALL, general, &result) ? -errno : (int64_t)result;
}

static int get_leave(pid_t process)
{
	int64_t done = call(process, SYS_arch_prctl, ASK_FOR_LEAVE, TILES, 0, 0);
	errno = -done;
	return done ? -1 : 0;
}

/* Gives memory from `start` to `end` a key, with what may be done there as it is. */
static int give_key(pid_t process, uint64_t start, uint64_t end, uint64_t key)
{
	char place[64], line[8192], may[8];
	unsigned long from, to;
	int64_t done = 0;
	snprintf(place, sizeof(place), "/proc/%d/maps", process);
	FILE *maps = fopen(place, "re");
	if (!maps)
		return -1;
	while (!done && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &to, may) != 3 || to <= start || from >= end)
			continue;
		from = from < start ? start : from;
		to = to > end ? end : to;
		int protection = (may[0] == 'r' ? PROT_READ : 0) | (may[1] == 'w' ? PROT_WRITE : 0) | (may[2] == 'x' ? PROT_EXEC : 0);
		done = call(process, SYS_pkey_mprotect, from, to - from, protection, key);
	}
	fclose(maps);
	errno = -done;
	return done ? -1 : 0;
}

/* Gives a process the keys that it had, and its memory those: words of the bits of keys, and of start, end and key of each area. */
static int give_keys(pid_t process, const uint8_t *had, size_t length)
{
	static uint8_t vector[MOST_REGISTERS] __attribute__((aligned(64)));
	struct iovec own = {vector, vectors(process, vector)};
	uint64_t wanted, got = 0, area[3];
	memcpy(&wanted, had, sizeof(wanted));
	/* Memory may have keys that were given back since. */
	uint64_t used = wanted;
	for (size_t at = sizeof(wanted); at + sizeof(area) <= length; at += sizeof(area)) {
		memcpy(area, had + at, sizeof(area));
		used |= 1ull << (area[2] & 63);
	}
	/* They come in order. */
	while (used & ~got) {
		int64_t key = call(process, SYS_pkey_alloc, 0, 0, 0, 0);
		if (key <= 0 || key > 62) {
			errno = key < 0 ? -key : ERANGE;
			return -1;
		}
		got |= 1ull << key;
	}
	for (size_t at = sizeof(wanted); at + sizeof(area) <= length; at += sizeof(area)) {
		memcpy(area, had + at, sizeof(area));
		if (give_key(process, area[0], area[1], area[2]))
			return -1;
	}
	for (int key = 1; key < 63; key++)
		if (got & ~wanted & 1ull << key)
			call(process, SYS_pkey_free, key, 0, 0, 0);
	/* What the thread itself may touch was changed with each key. */
	return !own.iov_len || kernel(PTRACE_SETREGSET, process, NT_X86_XSTATE, &own) < 0 ? -1 : 0;
}

/* Copies a part of vector registers; 0 if it lies in both. */
static int copy(int part, uint8_t *to, size_t length, const uint8_t *from, size_t from_length)
{
	uint32_t size, at, c, d;
	__cpuid_count(0xd, part, size, at, c, d);
	if (!size || at + size > length || at + size > from_length)
		return -1;
	memcpy(to + at, from + at, size);
	*(uint64_t *)(to + PARTS_AT) |= 1ull << part;
	return 0;
}

static int give(pid_t thread, const uint8_t *had, size_t had_length)
{
	static uint8_t now[MOST_REGISTERS] __attribute__((aligned(64)));
	uint64_t parts = *(const uint64_t *)(had + PARTS_AT), unused;
	int has_tiles = parts >> TILES & 1;
	for (int use = 0; use <= has_tiles; use++) {
		size_t length = vectors(thread, now);
		struct iovec part = {now, length};
		if (!length || copy(SHAPES, now, length, had, had_length) || (use && copy(TILES, now, length, had, had_length)))
			return -1;
		if (kernel(PTRACE_SETREGSET, thread, NT_X86_XSTATE, &part) < 0)
			return -1;
		/* The kernel makes room for tiles when they are used first. */
		if (!use && has_tiles && run_aside(thread, USE_TILES, (struct user_regs_struct){0}, &unused))
			return -1;
	}
	return 0;
}

/* Gives a process and its threads what they had. */
static int give_all(pid_t process, const uint8_t *file, size_t length)
{
	struct record record;
	/* What is withheld from the program is not withheld from us. Where there is no filter the kernel may refuse this. */
	kernel(PTRACE_SETOPTIONS, process, 0, (void *)SUSPEND_FILTERS);
	int has_leave = 0;
	for (size_t at = 0; at + sizeof(record) <= length; at += sizeof(record) + record.length) {
		memcpy(&record, file + at, sizeof(record));
		const uint8_t *had = file + at + sizeof(record);
		int has_tiles = record.kind == TILES_OF_THREAD;
		size_t least = has_tiles ? PARTS_AT + 8 : record.kind == KEYS ? 8 : 0;
		if (record.length > length - at - sizeof(record) || record.length < least) {
			errno = EBADMSG;
			return -1;
		}
		if (record.process != process)
			continue;
		if (record.kind == KEYS ? give_keys(process, had, record.length) : !has_leave++ && get_leave(process))
			return -1;
		if (has_tiles && give(record.thread, had, record.length))
			return -1;
	}
	kernel(PTRACE_SETOPTIONS, process, 0, NULL);
	return 0;
}

static int is_of(pid_t process, pid_t thread)
{
	char place[64];
	snprintf(place, sizeof(place), "/proc/%d/task/%d", process, thread);
	return !access(place, F_OK);
}

/* CRIU is about to let go of this thread. */
static int before_it_runs(pid_t thread)
{
	static uint8_t *file;
	static size_t length;
	struct stat meta;
	if (!file) {
		if (fstat(records, &meta) || meta.st_size < HEAD || !(file = malloc(meta.st_size)))
			return -1;
		ssize_t got = pread(records, file, meta.st_size - HEAD, HEAD);
		length = got < 0 ? 0 : got;
	}
	struct record record;
	for (size_t at = 0; at + sizeof(record) <= length; at += sizeof(record) + record.length) {
		memcpy(&record, file + at, sizeof(record));
		pid_t process = record.process;
		if (process <= 0 || !is_of(process, thread))
			continue;
		int done = give_all(process, file, length);
		/* It has them. */
		for (size_t other = 0; other + sizeof(record) <= length; other += sizeof(record) + record.length) {
			memcpy(&record, file + other, sizeof(record));
			if (record.process == process)
				((struct record *)(file + other))->process = -1;
		}
		return done;
	}
	return 0;
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list more;
	va_start(more, request);
	pid_t thread = va_arg(more, pid_t);
	uint64_t address = (uintptr_t)va_arg(more, void *);
	void *data = va_arg(more, void *);
	va_end(more);
	if (request == PTRACE_DETACH && records >= 0) {
		sigset_t children, mask;
		sigemptyset(&children);
		sigaddset(&children, SIGCHLD);
		sigprocmask(SIG_BLOCK, &children, &mask);
		int failed = before_it_runs(thread), error = errno;
		sigprocmask(SIG_SETMASK, &mask, NULL);
		errno = error;
		if (failed)
			return -1;
	}
	long word = 0;
	int peeks = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
	long done = kernel(request, thread, address, peeks ? (void *)&word : data);
	if (done < 0 || !peeks)
		return done;
	errno = 0;
	return word;
}
