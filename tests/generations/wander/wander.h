/* A program that changes its memory at random and knows every byte of it.
 *
 *   wander DIRECTORY SEED PAGES [gpu]
 *
 * | main.c       | the orders that it takes |
 * | model.c      | what each page of its memory must be, and comparing it with what is there |
 * | operations.c | what it does to its memory |
 * | child.c      | a child that does the same with the memory that it was forked with |
 * | gpu.c        | the same for memory of a GPU |
 *
 * All that it maps lies in an arena at a fixed address, PAGES long. A model says of each page of it what it is and from
 * which number its bytes are made, so that they can be made again and compared.
 */
#ifndef WANDER_H
#define WANDER_H

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
#define ARENA ((char *)0x100000000000)
#define MOST_PAGES 65536
#define FILE_PAGES 1024
#define SHM_PAGES 256
#define HEAP_PAGES 512

enum kind { NONE, ANONYMOUS, PRIVATE, SHARED, SHM_FILE };
enum { DONTFORK = 1 };

struct page {
	uint8_t kind, protection, advice;
	/* Of what is mapped of a file, which page of it. */
	uint32_t place;
	/* What its bytes are made from, and of one word of it; 0 is zero. */
	uint32_t stamp, poke;
};

struct range {
	size_t start, count;
};

/* --- the model */

extern struct page model[MOST_PAGES], heap[HEAP_PAGES];
extern uint32_t shm_stamp[SHM_PAGES], last_stamp;
extern size_t pages, heap_pages;
extern char *heap_start;
/* What random numbers are made from. */
extern uint64_t state;
extern int is_child;
/* What was wrong first; empty while nothing is. */
extern char wrong[512];

uint64_t mix(uint64_t x);
uint64_t draw(void);
size_t below(size_t most);
void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The bytes of a page. */
void make(uint32_t stamp, uint32_t poke, uint64_t *into);
/* Compares all that is known with all that is there; how many pages. */
size_t check(void);
void check_areas(void);

/* --- what it does */

/* The file that is mapped, and the one in memory that processes share. */
extern int file, shm;
/* How many operations there were. */
extern unsigned long done;

void operate(uint64_t count);

/* Begins a child or ends it, now and then. */
void do_child(void);
int has_child(void);
void have_child_operate(uint64_t count);
void end_child(void);

/* --- the GPU */

/* Opens it. */
void gpu_begin(void);
int has_gpu(void);
void gpu_operate(void);
/* How many pages were compared. */
size_t gpu_check(void);

#endif
