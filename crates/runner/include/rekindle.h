/* Functions without Python, in C or C++ (docs/architecture/native.md).
 *
 * A library of functions has one symbol, which REKINDLE_LIBRARY makes. It links nothing of Rekindle's: what it may call
 * comes with each call. `rekindle-runner` loads it; `rekindle deploy function.toml` makes that a service.
 *
 *     static int twice(rekindle_call *call, void *shared, void *own) {
 *         size_t count;
 *         const rekindle_value *arguments = rekindle_arguments(call, &count);
 *         if (count != 1 || arguments[0].kind != REKINDLE_INTEGER)
 *             return rekindle_fail(call, "TypeError", "give one integer");
 *         return rekindle_give_integer(call, 2 * arguments[0].integer);
 *     }
 *     static const rekindle_function functions[] = {{.name = "twice", .call = twice}};
 *     REKINDLE_LIBRARY(functions);
 */
#ifndef REKINDLE_H
#define REKINDLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REKINDLE_VERSION 1

/* What hooks return. A function that failed has said why by rekindle_fail. */
#define REKINDLE_DONE 0
#define REKINDLE_FAILED (-1)
/* It failed, and what is the instance's own is of no further use: the instance ends. */
#define REKINDLE_BROKEN (-2)

/* A thread of the runner in the hands of a library, in the thread and for the hook that it is given to. */
typedef struct rekindle_call rekindle_call;

enum rekindle_kind {
    REKINDLE_NONE = 0,
    REKINDLE_BOOLEAN = 1,
    REKINDLE_INTEGER = 2,
    REKINDLE_REAL = 3,
    REKINDLE_COMPLEX = 4,
    REKINDLE_TEXT = 5,       /* UTF-8 */
    REKINDLE_BYTES = 6,
    REKINDLE_DATE = 7,       /* text in ISO 8601 */
    REKINDLE_LIST = 8,
    REKINDLE_TUPLE = 9,
    REKINDLE_SET = 10,
    REKINDLE_FROZEN_SET = 11,
    REKINDLE_DICTIONARY = 12,
    REKINDLE_ARRAY = 13,     /* in the host's memory, in C order */
    REKINDLE_SCALAR = 14,    /* an array without dimensions */
    REKINDLE_REFERENCE = 15, /* an array on a GPU that was put */
    REKINDLE_DEVICE = 16     /* memory on the GPU; cannot be sent */
};

/* A value, and all that is in it. Fields that the kind does not use are 0. */
typedef struct rekindle_value {
    int kind;
    int64_t integer;     /* BOOLEAN, INTEGER; DEVICE: the address; REFERENCE: whether a workflow gave it */
    double real;         /* REAL, COMPLEX */
    double imaginary;
    const void *data;    /* TEXT and DATE, which end with a zero; BYTES; ARRAY: contents; REFERENCE: its name */
    size_t size;         /* of `data` in bytes, without that zero; of DEVICE */
    const struct rekindle_value *items; /* elements; DICTIONARY: key, value, key, value */
    size_t count;        /* elements, or pairs */
    const char *dtype;   /* ARRAY, SCALAR, REFERENCE, DEVICE: "float32" and so on; others as NumPy describes them */
    size_t dimensions;
    const uint64_t *shape;
} rekindle_value;

/* A function. All but `name` and `call` may be null. `shared` is what setup made: threads use it at the same time. `own` is
 * what enter made: it is its instance's alone, and so is the thread that it is used in. */
typedef struct rekindle_function {
    const char *name;                                                /* up to 31 letters, digits and _ */
    int (*setup)(rekindle_call *call, void **shared);                /* once in a runner, before its image is taken */
    int (*enter)(rekindle_call *call, void *shared, void **own);     /* in each instance, before its first call */
    int (*call)(rekindle_call *call, void *shared, void *own);       /* its result is given by rekindle_give */
    void (*leave)(rekindle_call *call, void *shared, void *own);     /* at the instance's end */
    void (*teardown)(rekindle_call *call, void *shared);             /* at the runner's end */
} rekindle_function;

typedef struct rekindle_library_table {
    uint32_t version;
    uint32_t count;
    const rekindle_function *functions;
} rekindle_library_table;

/* Declares all functions of a library, once. */
#define REKINDLE_LIBRARY(functions) \
    extern const rekindle_library_table rekindle_library; \
    const rekindle_library_table rekindle_library = { \
        REKINDLE_VERSION, (uint32_t)(sizeof(functions) / sizeof((functions)[0])), functions}

/* What the functions below are made of. New ones come at the end; `size` is that of the runner's table. */
typedef struct rekindle_api {
    size_t size;
    void *(*stream)(rekindle_call *);
    void (*log)(rekindle_call *, const char *);
    int (*fail)(rekindle_call *, const char *, const char *);
    const uint8_t *(*message)(rekindle_call *, size_t *);
    int (*reply)(rekindle_call *, const uint8_t *, size_t);
    const rekindle_value *(*arguments)(rekindle_call *, size_t *);
    const rekindle_value *(*keyword)(rekindle_call *, const char *);
    int (*give)(rekindle_call *, const rekindle_value *);
    const rekindle_value *(*put)(rekindle_call *, const rekindle_value *, double);
    int (*get)(rekindle_call *, const rekindle_value *, uint64_t *);
    int (*drop)(rekindle_call *, const rekindle_value *);
    const rekindle_value *(*data)(rekindle_call *, const char *, int);
    const char *(*problem)(rekindle_call *, const char **);
    const uint8_t *(*message_in)(rekindle_call *, uint32_t, size_t *);
    uint64_t (*span_begin)(rekindle_call *);
    void (*span_end)(rekindle_call *, const char *, uint64_t);
} rekindle_api;

struct rekindle_call {
    const rekindle_api *api;
};

/* The instance's own CUstream, which waits for no other; in setup and teardown the runner's. The GPU's primary context is
 * current. Work on the stream is to have ended before a call returns. */
static inline void *rekindle_stream(rekindle_call *call) { return call->api->stream(call); }

/* A line of the log. */
static inline void rekindle_log(rekindle_call *call, const char *text) { call->api->log(call, text); }

/* Why there is no result: the type of the exception, and a sentence. Python raises its own exception if it has one built in
 * of that name ("ValueError"), else RemoteError. Returns REKINDLE_FAILED. */
static inline int rekindle_fail(rekindle_call *call, const char *type, const char *text) {
    return call->api->fail(call, type, text);
}

/* What was said by rekindle_fail, or by one of the functions below that failed; null if nothing was. `type` may be null. */
static inline const char *rekindle_problem(rekindle_call *call, const char **type) { return call->api->problem(call, type); }

/* The arguments, which are there until the call returns. Null if they are none that C has (integers of more than 64 bits). */
static inline const rekindle_value *rekindle_arguments(rekindle_call *call, size_t *count) {
    return call->api->arguments(call, count);
}

/* A keyword argument; null if it was not given. */
static inline const rekindle_value *rekindle_keyword(rekindle_call *call, const char *name) {
    return call->api->keyword(call, name);
}

/* The result; all that the value points to may go once this returns. A call that gives nothing returns None. */
static inline int rekindle_give(rekindle_call *call, const rekindle_value *value) { return call->api->give(call, value); }

/* Keeps a copy of an array on the GPU for other functions, until so many seconds after its last use. It is an ARRAY, or DEVICE
 * with address, size, dtype and shape. Waits for the GPU's work. The reference is there until the call returns; null: it failed. */
static inline const rekindle_value *rekindle_put(rekindle_call *call, const rekindle_value *array, double expiry) {
    return call->api->put(call, array, expiry);
}

/* Maps an array that was put. It is only to be read, and to be freed by cuMemFree. */
static inline int rekindle_get(rekindle_call *call, const rekindle_value *reference, uint64_t *address) {
    return call->api->get(call, reference, address);
}

/* Nobody gets it from now on. */
static inline int rekindle_drop(rekindle_call *call, const rekindle_value *reference) {
    return call->api->drop(call, reference);
}

/* Declared data, as DEVICE: loaded once in a runner, and not to be written to. Without `wait` its bytes may still be on their
 * way, which kernels wait for. Null: it cannot be had. */
static inline const rekindle_value *rekindle_data(rekindle_call *call, const char *name, int wait) {
    return call->api->data(call, name, wait);
}

/* The message in its first version, and the result's message, for libraries that read and write them by themselves. */
static inline const uint8_t *rekindle_message(rekindle_call *call, size_t *size) { return call->api->message(call, size); }
/* The same for a library that reads messages up to this version; a runner that has none of it gives what came. */
static inline const uint8_t *rekindle_message_in(rekindle_call *call, uint32_t version, size_t *size) {
    if (call->api->size <= offsetof(rekindle_api, message_in)) return call->api->message(call, size);
    return call->api->message_in(call, version, size);
}
static inline int rekindle_reply(rekindle_call *call, const uint8_t *data, size_t size) {
    return call->api->reply(call, data, size);
}

/* A part of the call is a span of its request's trace: `begin` is what rekindle_span_begin said when that began, 0 where nobody
 * follows the request. Names have up to 64 letters, digits, blanks and .:/_- */
static inline uint64_t rekindle_span_begin(rekindle_call *call) {
    return call->api->size <= offsetof(rekindle_api, span_end) ? 0 : call->api->span_begin(call);
}
static inline void rekindle_span_end(rekindle_call *call, const char *name, uint64_t begin) {
    if (begin) call->api->span_end(call, name, begin);
}

static inline rekindle_value rekindle_value_of(int kind) {
    rekindle_value value;
    memset(&value, 0, sizeof value);
    value.kind = kind;
    return value;
}

static inline int rekindle_give_integer(rekindle_call *call, int64_t integer) {
    rekindle_value value = rekindle_value_of(REKINDLE_INTEGER);
    value.integer = integer;
    return rekindle_give(call, &value);
}

static inline int rekindle_give_real(rekindle_call *call, double real) {
    rekindle_value value = rekindle_value_of(REKINDLE_REAL);
    value.real = real;
    return rekindle_give(call, &value);
}

static inline int rekindle_give_text(rekindle_call *call, const char *text) {
    rekindle_value value = rekindle_value_of(REKINDLE_TEXT);
    value.data = text;
    value.size = strlen(text);
    return rekindle_give(call, &value);
}

/* An array in the host's memory. */
static inline rekindle_value rekindle_array(const char *dtype, size_t dimensions, const uint64_t *shape, const void *data, size_t size) {
    rekindle_value value = rekindle_value_of(REKINDLE_ARRAY);
    value.dtype = dtype;
    value.dimensions = dimensions;
    value.shape = shape;
    value.data = data;
    value.size = size;
    return value;
}

/* Memory on the GPU, to be put. */
static inline rekindle_value rekindle_device(const char *dtype, size_t dimensions, const uint64_t *shape, uint64_t address, size_t size) {
    rekindle_value value = rekindle_array(dtype, dimensions, shape, NULL, size);
    value.kind = REKINDLE_DEVICE;
    value.integer = (int64_t)address;
    return value;
}

/* Of librekindle: a program that has functions in itself is a runner by `return rekindle_run(argc, argv, &rekindle_library);`.
 * What it is told is what `rekindle-runner --help` says. */
int rekindle_run(int count, const char *const *words, const rekindle_library_table *own);

#ifdef __cplusplus
}
#endif

#endif
