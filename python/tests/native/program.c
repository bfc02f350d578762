/* A runner of one's own: functions in the program itself. */
#include <rekindle.h>

#ifndef ANSWER
#define ANSWER 42
#endif

static int answer(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    return rekindle_give_integer(call, ANSWER);
}

static const rekindle_function functions[] = {{.name = "answer", .call = answer}};
REKINDLE_LIBRARY(functions);

int main(int argc, char **argv) { return rekindle_run(argc, (const char *const *)argv, &rekindle_library); }
