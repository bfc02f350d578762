/* Preloaded: says that PRETENDED processors can be used, for programs that choose by that how to wait. */

#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    int processors = atoi(getenv("PRETENDED"));
    (void)pid;
    memset(set, 0, size);
    for (int processor = 0; processor < processors; processor++)
        CPU_SET_S(processor, size, set);
    return 0;
}
