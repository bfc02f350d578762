/* A library of the name of torch's allocator. Its threads run without the interpreter, as those of torch's backward pass do. */

#include <unistd.h>

/* Who calls it as a function of Python's keeps the interpreter until there is this file. */
void keep(const char *path)
{
    if (write(1, "ready\n", 6) != 6)
        return;
    while (access(path, F_OK))
        usleep(1000);
}

typedef int set_memory(unsigned long long address, unsigned value, unsigned long count);

/* Makes requests, no more of them than the GPU takes. */
void ask(set_memory *set, unsigned long long address)
{
    for (;;) {
        set(address, 0, 1);
        usleep(20);
    }
}
