/* Processes and threads that use tile registers, or may, or may not.
 *
 * tiles GO: two threads that have different shapes and values in tiles all the time and look whether they are as they were, and
 * multiply some in between; and three children: one that has no leave to use tiles, one that has and uses none before the end,
 * and one whose filter keeps it from asking. Prints `ready`, waits for the file, then prints `ok`, or what was not as it was. */
#define _GNU_SOURCE
#include <errno.h>
#include <immintrin.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GET_LEAVE 0x1022
#define ASK_FOR_LEAVE 0x1023
#define TILES 18
#define THREADS 2

static const char *go;
static atomic_int begun;
static const char *wrong[THREADS];

static int has_leave(void)
{
	uint64_t parts = 0;
	syscall(SYS_arch_prctl, GET_LEAVE, &parts);
	return parts >> TILES & 1;
}

static int is_over(void)
{
	return !access(go, F_OK);
}

/* Without a call in between, for as long as nothing is wrong: so most images find it in the middle of that. */
static const char *use(int number, int rounds)
{
	struct __attribute__((packed)) { uint8_t palette, row, unused[14]; uint16_t width[16]; uint8_t rows[16]; } shapes = {.palette = 1}, now;
	static _Thread_local int8_t left[1024], right[1024], out[1024];
	static _Thread_local int32_t product[256], expected[256];
	int rows = 16 - number, columns = 64;
	for (int tile = 0; tile < 8; tile++)
		shapes.width[tile] = columns, shapes.rows[tile] = rows;
	/* The right side has four rows in each of its rows, as many as the left has columns. */
	shapes.rows[2] = 16;
	for (int at = 0; at < 1024; at++)
		left[at] = at * 7 + number, right[at] = at * 5 - number;
	for (int row = 0; row < rows; row++)
		for (int column = 0; column < 16; column++) {
			int32_t sum = 0;
			for (int at = 0; at < 64; at++)
				sum += left[row * 64 + at] * right[at / 4 * 64 + column * 4 + at % 4];
			expected[row * 16 + column] = sum;
		}
	_tile_loadconfig(&shapes);
	_tile_loadd(1, left, 64);
	_tile_loadd(2, right, 64);
	_tile_loadd(7, right + 1, 63);
	for (int round = 0; round < rounds; round++) {
		_tile_zero(0);
		_tile_dpbssd(0, 1, 2);
		_tile_stored(0, product, 64);
		if (memcmp(product, expected, rows * 64))
			return "a product is another";
		_tile_stored(7, out, 64);
		for (int row = 0; row < rows; row++)
			if (memcmp(out + row * 64, right + 1 + row * 63, 63))
				return "a tile is another";
		_tile_storeconfig(&now);
		if (memcmp(&shapes, &now, sizeof(now)))
			return "shapes are others";
		atomic_fetch_add(&begun, round == 0);
	}
	return NULL;
}

static void *thread(void *number)
{
	int own = (intptr_t)number;
	while (!wrong[own] && !is_over())
		wrong[own] = use(own, 20000);
	return NULL;
}

static void may_not_ask(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {4, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		exit(5);
}

enum kind { WITHOUT_LEAVE, UNUSED, FILTERED };

static pid_t child(enum kind kind)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (kind == FILTERED)
		may_not_ask();
	while (!is_over())
		usleep(10000);
	if (kind == WITHOUT_LEAVE)
		_exit(has_leave() ? 3 : 0);
	_exit(use(0, 10) ? 4 : 0);
}

int main(int count, char **words)
{
	if (count != 2)
		return 2;
	go = words[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	pid_t children[3] = {child(WITHOUT_LEAVE)};
	if (syscall(SYS_arch_prctl, ASK_FOR_LEAVE, TILES))
		return perror("leave to use tiles"), 2;
	children[1] = child(UNUSED);
	children[2] = child(FILTERED);
	pthread_t threads[THREADS];
	for (intptr_t number = 0; number < THREADS; number++)
		if (pthread_create(&threads[number], NULL, thread, (void *)number))
			return 2;
	while (begun < THREADS)
		usleep(1000);
	puts("ready");
	int is_well = 1;
	for (int number = 0; number < THREADS; number++) {
		pthread_join(threads[number], NULL);
		if (wrong[number])
			is_well = 0, printf("thread %d: %s\n", number, wrong[number]);
	}
	for (int number = 0; number < 3; number++) {
		int status;
		waitpid(children[number], &status, 0);
		if (status)
			is_well = 0, printf("child %d ended with %#x\n", number, status);
	}
	if (!has_leave())
		is_well = 0, puts("the process has lost its leave");
	if (is_well)
		puts("ok");
	return !is_well;
}
