/* A function that does not get ready. */
#include <rekindle.h>

static int setup(rekindle_call *call, void **shared) {
    (void)shared;
    return rekindle_fail(call, "ValueError", "the weights are missing");
}

static int carry(rekindle_call *call, void *shared, void *own) {
    (void)call, (void)shared, (void)own;
    return REKINDLE_DONE;
}

static const rekindle_function functions[] = {{.name = "unready", .setup = setup, .call = carry}};
REKINDLE_LIBRARY(functions);
