/* A library of the name of torch's allocator. Its threads run without the interpreter, as those of torch's backward pass do. */

#include <unistd.h>

typedef int set_memory(unsigned long long address, unsigned value, unsigned long count);

/* Makes requests, no more of them than the GPU takes. */
void ask(set_memory *set, unsigned long long address)
{
    for (;;) {
        set(address, 0, 1);
        usleep(20);
    }
}
