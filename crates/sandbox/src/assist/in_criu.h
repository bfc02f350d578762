/* What the parts of our library in CRIU share, and what they share with us; see mod.rs. */
#ifndef IN_CRIU_H
#define IN_CRIU_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* The layout is that of `Shared` in mod.rs. */
#define PROCESSES 16
#define THREADS 512
#define ANSWERS 32
#define ROOM 20000
#define POSTED 16
#define POSTED_ROOM (64 << 10)

struct answer {
	uint32_t request, length;
	uint64_t address, key;
	int64_t result;
	uint64_t offset;
};

struct thread {
	_Atomic uint32_t count, unused;
	struct answer answers[ANSWERS];
	uint8_t bytes[ROOM];
};

struct posted {
	uint32_t request, thread;
	uint64_t address, data, offset, length;
};

/* An area, and what its link in `map_files` is: 0 while that is not known. */
struct link {
	uint64_t start, end;
	_Atomic uint32_t mode, unused;
};
/* There is no link. */
#define NO_LINK 1u

/* What a thread of ours finds out, as in look_ahead.rs: 0 if nobody looks. */
#define LOOKED_AT 1u
#define SO 2u
typedef _Atomic uint32_t look_ahead;

struct shared {
	_Atomic uint32_t criu, hides_unwritten, answered, linked;
	/* All TCP sockets of the program listen. */
	look_ahead all_listen;
	_Atomic uint32_t unused_word;
	struct {
		_Atomic uint32_t pid, is_used;
		_Atomic uint64_t at, length, links, link_count, written, written_count;
		look_ahead is_written_known, has_no_guards;
	} areas[PROCESSES];
	/* Which thread each of the table is, as far as there are any; apart from that, which lies on many pages. */
	_Atomic uint32_t thread_count, unused_count;
	_Atomic uint32_t thread_ids[THREADS];
	struct thread threads[THREADS];
	_Atomic uint32_t posted_count, unused;
	struct posted posted[POSTED];
	uint8_t posted_bytes[POSTED_ROOM];
};

_Static_assert(offsetof(struct shared, threads) == 32 + 64 * PROCESSES + 4 * THREADS, "as in mod.rs");
_Static_assert(sizeof(struct thread) == 8 + 40 * ANSWERS + ROOM, "as in answers.rs");
_Static_assert(offsetof(struct shared, posted_bytes) == offsetof(struct shared, posted_count) + 8 + 40 * POSTED, "as in answers.rs");
_Static_assert(sizeof(struct link) == 24, "as in links.rs");

extern __attribute__((visibility("hidden"))) struct shared *shared;

/* Whether this is the CRIU that all is for, and not one of its children, which have the memory too. */
__attribute__((visibility("hidden"))) int is_criu(void);
/* Whether something is so, which is waited for if it is being looked at; 0 if nobody has found that out. */
__attribute__((visibility("hidden"))) int is_found(const look_ahead *look);
/* The process whose directory in /proc this is, or a file in it; 0 if it is none. */
__attribute__((visibility("hidden"))) uint32_t process(int directory);
/* The number of the file that a descriptor is of, to see whether it is of another one by now: descriptors are closed by ways that
 * are not seen here, as by `closedir` and `dup2`. 0 if it is of none. */
__attribute__((visibility("hidden"))) uint64_t inode(int fd);
/* A file that describes a process's areas, for which the kernel need not look at each of its pages; -1 if there is none. */
__attribute__((visibility("hidden"))) int described_areas(int directory);

/* CRIU closes a descriptor, which may be one of a process's pages. */
__attribute__((visibility("hidden"))) void forget_pages(int fd);

#endif
