/* Memory of a GPU, of which every byte is known as well: buffers, pinned memory, and what copies and kernels make of them. */
#include "wander.h"

#include <dlfcn.h>
#include <string.h>

#define BUFFERS 12
#define MOST_BUFFER_PAGES 48
#define PINNED_PAGES 8
#define THREADS 128

typedef int code;
typedef uint64_t address;

/* Each word of a page is that of the stamp, with a number added. */
struct made {
	uint32_t stamp, added;
};

static struct buffer {
	address at;
	size_t count;
	struct made pages[MOST_BUFFER_PAGES];
} buffers[BUFFERS];

static uint64_t *pinned;
static uint32_t pinned_stamps[PINNED_PAGES];
static void *library, *stream, *kernel;
static int is_open;

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			  ".visible .entry add(.param .u64 words, .param .u32 by)\n{\n"
			  ".reg .u64 %address, %offset;\n.reg .u32 %thread, %block, %size, %word, %by;\n"
			  "ld.param.u64 %address, [words];\ncvta.to.global.u64 %address, %address;\n"
			  "ld.param.u32 %by, [by];\nmov.u32 %thread, %tid.x;\nmov.u32 %block, %ctaid.x;\n"
			  "mov.u32 %size, %ntid.x;\nmad.lo.u32 %thread, %block, %size, %thread;\n"
			  "mul.wide.u32 %offset, %thread, 4;\nadd.u64 %address, %address, %offset;\n"
			  "ld.global.u32 %word, [%address];\nadd.u32 %word, %word, %by;\n"
			  "st.global.u32 [%address], %word;\nret;\n}\n";

/* Calls a function of the driver's; what fails is wrong. */
#define CALL(name, types, ...)                                                    \
	do {                                                                      \
		code(*function) types = (code(*) types)(uintptr_t)dlsym(library, #name); \
		code result = function ? function(__VA_ARGS__) : -1;              \
		if (result)                                                       \
			die("%s failed: %d", #name, result);                      \
	} while (0)

int has_gpu(void)
{
	return is_open;
}

void gpu_begin(void)
{
	int device = 0;
	void *context = NULL, *module = NULL;
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		die("there is no libcuda.so.1: %s", dlerror());
		return;
	}
	CALL(cuInit, (unsigned), 0);
	CALL(cuDeviceGet, (int *, int), &device, 0);
	CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
	CALL(cuCtxSetCurrent, (void *), context);
	CALL(cuModuleLoadData, (void **, const void *), &module, ptx);
	CALL(cuModuleGetFunction, (void **, void *, const char *), &kernel, module, "add");
	CALL(cuStreamCreate, (void **, unsigned), &stream, 0);
	CALL(cuMemHostAlloc, (void **, size_t, unsigned), (void **)&pinned, PINNED_PAGES * PAGE, 0);
	if (!wrong[0])
		memset(pinned, 0, PINNED_PAGES * PAGE);
	is_open = !wrong[0];
}

static void make_buffer(struct made of, uint32_t *into)
{
	make(of.stamp, 0, (uint64_t *)into);
	for (size_t word = 0; of.added && word < PAGE / 4; word++)
		into[word] += of.added;
}

/* A stretch of a buffer that is there. */
static struct buffer *any(struct range *range)
{
	struct buffer *buffer = &buffers[below(BUFFERS)];
	if (!buffer->at)
		return NULL;
	range->start = below(buffer->count);
	range->count = 1 + below(buffer->count - range->start);
	return buffer;
}

static void do_allocate(void)
{
	struct buffer *buffer = &buffers[below(BUFFERS)];
	if (buffer->at) {
		CALL(cuMemFree_v2, (address), buffer->at);
		memset(buffer, 0, sizeof(*buffer));
		return;
	}
	buffer->count = 1 + below(below(2) ? 4 : MOST_BUFFER_PAGES);
	CALL(cuMemAlloc_v2, (address *, size_t), &buffer->at, buffer->count * PAGE);
	CALL(cuMemsetD32_v2, (address, unsigned, size_t), buffer->at, 0, buffer->count * PAGE / 4);
}

static void do_upload(void)
{
	static uint64_t page[WORDS];
	struct range range;
	struct buffer *buffer = any(&range);
	for (size_t at = 0; buffer && at < range.count; at++) {
		buffer->pages[range.start + at] = (struct made){ below(20) ? ++last_stamp : 0, 0 };
		make(buffer->pages[range.start + at].stamp, 0, page);
		CALL(cuMemcpyHtoD_v2, (address, const void *, size_t), buffer->at + (range.start + at) * PAGE, page, PAGE);
	}
}

/* From pinned memory, by a stream: it may be under way when the next operation begins, or the program is taken. */
static void do_upload_pinned(void)
{
	struct range range;
	struct buffer *buffer = any(&range);
	if (!buffer)
		return;
	CALL(cuStreamSynchronize, (void *), stream);
	for (size_t at = 0; at < range.count && at < PINNED_PAGES; at++) {
		pinned_stamps[at] = ++last_stamp;
		make(pinned_stamps[at], 0, pinned + at * WORDS);
		buffer->pages[range.start + at] = (struct made){ pinned_stamps[at], 0 };
		CALL(cuMemcpyHtoDAsync_v2, (address, const void *, size_t, void *), buffer->at + (range.start + at) * PAGE,
		     pinned + at * WORDS, PAGE, stream);
	}
}

static void do_fill(void)
{
	struct range range;
	struct buffer *buffer = any(&range);
	uint32_t with = (uint32_t)draw();
	if (!buffer)
		return;
	for (size_t at = range.start; at < range.start + range.count; at++)
		buffer->pages[at] = (struct made){ 0, with };
	CALL(cuMemsetD32Async, (address, unsigned, size_t, void *), buffer->at + range.start * PAGE, with,
	     range.count * PAGE / 4, stream);
}

static void do_copy(void)
{
	struct range from, to;
	struct buffer *one = any(&from), *other = any(&to);
	if (!one || !other || one == other)
		return;
	size_t count = from.count < to.count ? from.count : to.count;
	memcpy(&other->pages[to.start], &one->pages[from.start], count * sizeof(*one->pages));
	CALL(cuMemcpyDtoDAsync_v2, (address, address, size_t, void *), other->at + to.start * PAGE,
	     one->at + from.start * PAGE, count * PAGE, stream);
}

static void do_launch(void)
{
	struct range range;
	struct buffer *buffer = any(&range);
	uint32_t by = (uint32_t)draw();
	if (!buffer)
		return;
	address words = buffer->at + range.start * PAGE;
	void *arguments[] = { &words, &by };
	for (size_t at = range.start; at < range.start + range.count; at++)
		buffer->pages[at].added += by;
	CALL(cuLaunchKernel,
	     (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), kernel,
	     range.count * PAGE / 4 / THREADS, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL);
}

void gpu_operate(void)
{
	static void (*const known[])(void) = { do_allocate, do_allocate, do_upload, do_upload_pinned,
					       do_fill,	    do_copy,	 do_launch, do_launch };
	known[below(sizeof(known) / sizeof(*known))]();
}

static void compare(const char *what, const void *at, struct made made, const uint32_t *found)
{
	static uint32_t expected[PAGE / 4];
	make_buffer(made, expected);
	if (wrong[0] || memcmp(found, expected, PAGE) == 0)
		return;
	size_t word = 0;
	while (found[word] == expected[word])
		word++;
	die("%s at %p (stamp %u, %#x added) has %#x in word %zu in place of %#x", what, at, made.stamp, made.added, found[word],
	    word, expected[word]);
}

size_t gpu_check(void)
{
	static uint32_t found[MOST_BUFFER_PAGES * PAGE / 4];
	size_t checked = PINNED_PAGES;
	CALL(cuStreamSynchronize, (void *), stream);
	for (size_t at = 0; at < PINNED_PAGES; at++)
		compare("the pinned page", pinned + at * WORDS, (struct made){ pinned_stamps[at], 0 },
			(uint32_t *)(pinned + at * WORDS));
	for (struct buffer *buffer = buffers; buffer < buffers + BUFFERS && !wrong[0]; buffer++) {
		if (!buffer->at)
			continue;
		CALL(cuMemcpyDtoH_v2, (void *, address, size_t), found, buffer->at, buffer->count * PAGE);
		for (size_t at = 0; at < buffer->count; at++)
			compare("the GPU's page", (void *)(buffer->at + at * PAGE), buffer->pages[at], found + at * PAGE / 4);
		checked += buffer->count;
	}
	return checked;
}
