/* Two processes with threads that are in all kinds of system calls and in none, and that know what must hold.
 *
 * sturdy PROGRESS WRONG
 *
 * PROGRESS is a file of 16 numbers of 8 bytes, in which each thread counts; what does not hold is told in WRONG.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLEEP, WRITE, READ, PING, PONG, REGISTERS, EPOLL, TIMER, CHILD, ECHO, SELF };
enum { WORDS = 1 << 18, PAGE = 4096 };

static volatile uint64_t *progress;
static const char *wrong_path;
static uint64_t *memory;
static char *guard;
static int numbers[2], echo[2], bell;

static void wrong(const char *what, long found, long expected)
{
	int file = open(wrong_path, O_WRONLY | O_APPEND | O_CREAT, 0600);
	dprintf(file, "process %d: %s %ld in place of %ld\n", getpid(), what, found, expected);
	close(file);
}

static void held(const char *what, long found, long expected)
{
	if (found != expected)
		wrong(what, found, expected);
}

static void rest(long microseconds)
{
	struct timespec left = { 0, microseconds * 1000 };
	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static uint64_t pattern(uint64_t index)
{
	return index * 0x9e3779b97f4a7c15u + 7;
}

static void *writes(void *none)
{
	for (uint64_t number = 0;; number++) {
		uint64_t once = 1;
		held("a write", write(numbers[1], &number, 8), 8);
		held("a ring", write(bell, &once, 8), 8);
		progress[WRITE]++;
		rest(3000);
	}
	return none;
}

static void *reads(void *none)
{
	for (uint64_t expected = 0;; expected++) {
		uint64_t number = 0;
		held("a read", read(numbers[0], &number, 8), 8);
		held("a number", number, expected);
		progress[READ]++;
	}
	return none;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn = PING;

static void *plays(void *side)
{
	int mine = (long)side;
	for (;;) {
		pthread_mutex_lock(&lock);
		while (turn != mine)
			pthread_cond_wait(&turned, &lock);
		turn = mine == PING ? PONG : PING;
		progress[mine]++;
		pthread_cond_broadcast(&turned);
		pthread_mutex_unlock(&lock);
		rest(1000);
	}
	return NULL;
}

/* All that it has is in registers. */
static void *computes(void *none)
{
	for (;;) {
		uint64_t sum = 0, seen = 0, word = 0x0123456789abcdefu;
		asm volatile("movq %[word], %%xmm5\n"
			     "pxor %%xmm6, %%xmm6\n"
			     "mov $200000, %%r12\n"
			     "xor %%r13, %%r13\n"
			     "1: add $3, %%r13\n"
			     "paddq %%xmm5, %%xmm6\n"
			     "dec %%r12\n"
			     "jnz 1b\n"
			     "mov %%r13, %[sum]\n"
			     "movq %%xmm6, %[seen]\n"
			     : [sum] "=r"(sum), [seen] "=r"(seen)
			     : [word] "r"(word)
			     : "r12", "r13", "xmm5", "xmm6", "cc");
		held("a sum", sum, 600000);
		held("a vector's sum", seen, word * 200000);
		progress[REGISTERS]++;
		rest(5000);
	}
	return none;
}

static void *waits(void *none)
{
	int set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	epoll_ctl(set, EPOLL_CTL_ADD, bell, &event);
	for (;;) {
		int ready = epoll_wait(set, &event, 1, -1);
		if (ready < 0 && errno == EINTR)
			continue;
		held("an event", ready, 1);
		uint64_t times;
		held("a bell's read", read(bell, &times, 8), 8);
		progress[EPOLL]++;
	}
	return none;
}

static void ticked(int signal)
{
	(void)signal;
	progress[TIMER]++;
}

static void *echoes(void *none)
{
	for (uint64_t number = 0;; number++) {
		uint64_t back = 0;
		held("a send", send(echo[0], &number, 8, MSG_NOSIGNAL), 8);
		held("an answer", recv(echo[0], &back, 8, 0), 8);
		held("what was sent", back, number);
		progress[ECHO]++;
		rest(2000);
	}
	return none;
}

static void child(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		uint64_t number = 0;
		long got = recv(echo[1], &number, 8, 0);
		if (got == 0)
			_exit(0);
		held("what the child got", got, 8);
		held("what the child sent", send(echo[1], &number, 8, MSG_NOSIGNAL), 8);
		progress[CHILD]++;
	}
}

static long descriptors(void)
{
	long count = 0;
	DIR *all = opendir("/proc/self/fd");
	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

/* Nothing of CRIU's is left in this process. */
static void look_at_itself(long before)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps))
		if (strstr(line, "CRIUMFD"))
			wrong("CRIU's memory", 1, 0);
	fclose(maps);
	held("descriptors", descriptors(), before);
	sigset_t pending, blocked;
	sigpending(&pending);
	held("a pending signal", sigismember(&pending, SIGUSR2), 1);
	sigprocmask(SIG_BLOCK, NULL, &blocked);
	for (int signal = 1; signal < 32; signal++)
		held("a blocked signal", sigismember(&blocked, signal), signal == SIGUSR2);
	held("memory without leave", write(numbers[1], guard, PAGE), -1);
	progress[SELF]++;
}

static void begin(void *(*work)(void *), void *of)
{
	pthread_t thread;
	pthread_create(&thread, NULL, work, of);
}

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	int file = open(words[1], O_RDWR);
	progress = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (progress == MAP_FAILED)
		return 2;
	wrong_path = words[2];
	memory = malloc(WORDS * 8);
	for (uint64_t index = 0; index < WORDS; index++)
		memory[index] = pattern(index);
	guard = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(guard, 1, PAGE);
	mprotect(guard, PAGE, PROT_NONE);
	if (pipe(numbers) || socketpair(AF_UNIX, SOCK_STREAM, 0, echo))
		return 2;
	if (fork() == 0) {
		close(echo[0]);
		child();
	}
	close(echo[1]);
	bell = eventfd(0, 0);
	sigset_t kept;
	sigemptyset(&kept);
	sigaddset(&kept, SIGUSR2);
	sigprocmask(SIG_BLOCK, &kept, NULL);
	kill(getpid(), SIGUSR2);
	struct sigaction tick = { .sa_handler = ticked, .sa_flags = SA_RESTART };
	sigaction(SIGALRM, &tick, NULL);
	struct itimerval every = { { 0, 7000 }, { 0, 7000 } };
	setitimer(ITIMER_REAL, &every, NULL);
	begin(writes, NULL);
	begin(reads, NULL);
	begin(plays, (void *)PING);
	begin(plays, (void *)PONG);
	begin(computes, NULL);
	begin(waits, NULL);
	begin(echoes, NULL);
	while (!progress[EPOLL])
		rest(1000);
	long before = descriptors();
	for (uint64_t step = 0;; step++) {
		for (uint64_t index = step % 64; index < WORDS; index += 64)
			if (memory[index] != pattern(index))
				wrong("memory", memory[index], pattern(index));
		look_at_itself(before);
		progress[SLEEP]++;
		rest(2000);
	}
}
