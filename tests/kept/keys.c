/* Protection keys of memory: which there are, what has them, and what threads may do there.
 *
 * keys GO: a process with the first, the second and the fourth key, of which two threads may do different things, and a child that
 * has given one back. Prints `ready`, waits for the file, then prints `ok`, or what is not as it was. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define KEYS 4

static const char *go;
static char *memory;
static int keys[KEYS];
static _Thread_local sigjmp_buf back;

static void caught(int number)
{
	siglongjmp(back, number);
}

/* Whether a byte of one of the pages can be written. A handler begins with the keys' first state, so it is set again. */
static int can_write(int page, int key, int rights)
{
	pkey_set(key, rights);
	int can = !sigsetjmp(back, 1);
	if (can)
		*(volatile char *)(memory + page * PAGE) = 7;
	pkey_set(key, rights);
	return can;
}

static void until_over(void)
{
	while (access(go, F_OK))
		usleep(10000);
}

/* What is wrong: that what a thread may do is another thing than it has said. */
static const char *look(int rights)
{
	int had = pkey_get(keys[3]);
	if (had != rights)
		return "a thread may do something else";
	if (can_write(2, keys[3], rights) != !rights)
		return "memory has another key";
	return can_write(1, keys[1], 0) && can_write(0, keys[0], 0) && can_write(3, keys[0], 0) ? NULL : "memory cannot be written";
}

static void *thread(void *unused)
{
	(void)unused;
	pkey_set(keys[3], PKEY_DISABLE_WRITE);
	until_over();
	return (void *)look(PKEY_DISABLE_WRITE);
}

int main(int count, char **words)
{
	if (count != 2)
		return 2;
	go = words[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	struct sigaction action = {.sa_handler = caught, .sa_flags = SA_NODEFER};
	sigaction(SIGSEGV, &action, NULL);
	memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int number = 0; number < KEYS; number++)
		keys[number] = pkey_alloc(0, 0);
	pkey_free(keys[2]);
	int is_there = keys[3] > 0 && !pkey_mprotect(memory, PAGE, PROT_READ | PROT_WRITE, keys[0]);
	if (!is_there || pkey_mprotect(memory + PAGE, PAGE, PROT_READ | PROT_WRITE, keys[1]) ||
	    pkey_mprotect(memory + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE, keys[3]))
		return perror("keys"), 2;
	pid_t child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pkey_free(keys[0]);
		until_over();
		_exit(pkey_alloc(0, 0) == keys[0] && pkey_alloc(0, 0) == keys[2] && can_write(2, keys[3], 0) ? 0 : 3);
	}
	pthread_t other;
	if (pthread_create(&other, NULL, thread, NULL))
		return 2;
	usleep(100000);
	puts("ready");
	void *wrong;
	int status;
	pthread_join(other, &wrong);
	waitpid(child, &status, 0);
	const char *own = look(0);
	if (wrong || own)
		printf("%s\n", wrong ? (char *)wrong : own);
	if (status)
		printf("the child ended with %#x\n", status);
	if (pkey_alloc(0, 0) != keys[2])
		puts("another key is free");
	else if (!wrong && !own && !status)
		puts("ok");
	return 0;
}
