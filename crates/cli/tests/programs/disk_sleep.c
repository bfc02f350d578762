/* A parent in uninterruptible sleep: vfork holds it until the child ends. */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    puts("ready");
    fflush(stdout);
    if (vfork() == 0) {
        pause();
        _exit(0);
    }
    return 0;
}
