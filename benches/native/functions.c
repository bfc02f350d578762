/* Functions that do next to nothing: what is measured is the way to them, and their start.
 *
 * f00 to f47 return their argument; `hold` takes as many milliseconds as it is told. */
#include <rekindle.h>

#include <time.h>

static int same(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    const rekindle_value *given = rekindle_arguments(call, &count);
    return count ? rekindle_give(call, given) : REKINDLE_DONE;
}

static int hold(rekindle_call *call, void *shared, void *own) {
    (void)shared, (void)own;
    size_t count;
    const rekindle_value *given = rekindle_arguments(call, &count);
    if (!count || given->kind != REKINDLE_INTEGER)
        return rekindle_fail(call, "TypeError", "hold takes milliseconds");
    nanosleep(&(struct timespec){.tv_sec = given->integer / 1000, .tv_nsec = given->integer % 1000 * 1000000}, NULL);
    return REKINDLE_DONE;
}

#define F(n) {.name = "f" #n, .call = same}
#define TEN(n) F(n##0), F(n##1), F(n##2), F(n##3), F(n##4), F(n##5), F(n##6), F(n##7), F(n##8), F(n##9)
static const rekindle_function functions[] = {
    TEN(0), TEN(1), TEN(2), TEN(3), F(40), F(41), F(42), F(43), F(44), F(45), F(46), F(47), {.name = "hold", .call = hold},
};
REKINDLE_LIBRARY(functions);
