/* A parent in uninterruptible sleep: vfork holds it until the child is killed. Then it counts. */
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
    for (int number = 0;; number++) {
        printf("%d\n", number);
        fflush(stdout);
        usleep(20000);
    }
}
