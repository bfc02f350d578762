"""Has weights on the GPU that it reads, state that it changes, and room where it writes the same again and again.

model.py [MEGABYTES]

A step folds the weights into the state: done twice, or not at all, it makes another. On SIGUSR1 a kernel changes a weight,
whose address it finds in memory; on SIGUSR2 a fill does; on SIGHUP it looks at the limit for stacks. Prints a number for
each step, or `wrong` if it did not give what it should; ends if the limit was another one before.
"""

import ctypes
import random
import signal
import sys
import time

BYTES = int(sys.argv[1] if len(sys.argv) > 1 else 6) << 20
STRIDE, COUNT = 4096, 256
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fold(.param .u64 from, .param .u64 into, .param .u64 room)
{
  .reg .u64 %a, %b, %c; .reg .u32 %sum, %word, %n, %old; .reg .pred %more;
  ld.param.u64 %a, [from]; ld.param.u64 %b, [into]; ld.param.u64 %c, [room];
  mov.u32 %sum, 0; mov.u32 %n, 0;
next:
  ld.global.u32 %word, [%a];
  mad.lo.u32 %sum, %sum, 31, %word;
  add.u64 %a, %a, 16384;
  add.u32 %n, %n, 1;
  setp.lt.u32 %more, %n, 256;
  @%more bra next;
  ld.global.u32 %old, [%b];
  mad.lo.u32 %old, %old, 7, %sum;
  st.global.u32 [%b], %old;
  st.global.u32 [%b+4], %sum;
  mov.u32 %word, 7;
  st.global.u32 [%c], %word;
  ret;
}
.visible .entry change(.param .u64 where)
{
  .reg .u64 %a; .reg .u32 %word;
  ld.param.u64 %a, [where];
  ld.global.u64 %a, [%a+8];
  ld.global.u32 %word, [%a];
  add.u32 %word, %word, 1;
  st.global.u32 [%a], %word;
  ret;
}
"""

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise SystemExit(f"{name} failed: {code}")


def allocate(count):
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), count)
    return address


def launch(name, *arguments):
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
    call("cuLaunchKernel", kernels[name], 1, 1, 1, 1, 1, 1, 0, None, pointers, None)


device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ctypes.byref(module), PTX)
kernels = {name: ctypes.c_void_p() for name in ("fold", "change")}
for name, kernel in kernels.items():
    call("cuModuleGetFunction", ctypes.byref(kernel), module, name.encode())
weights, state, room = allocate(BYTES), allocate(2 << 20), allocate(4 << 20)
contents = random.Random(7).randbytes(BYTES)
call("cuMemcpyHtoD_v2", weights, contents, BYTES)
call("cuMemsetD32_v2", state, 0, (2 << 20) // 4)
call("cuMemsetD32_v2", room, 7, (4 << 20) // 4)
call("cuMemcpyHtoD_v2", ctypes.c_uint64(state.value + 8), ctypes.byref(weights), 8)
words = [int.from_bytes(contents[n * STRIDE * 4 :][:4], "little") for n in range(COUNT)]
todo = []
for number, name in ((signal.SIGUSR1, "change"), (signal.SIGUSR2, "fill"), (signal.SIGHUP, "look")):
    signal.signal(number, lambda *_, name=name: todo.append(name))
seen = (ctypes.c_uint32 * 2)()
limit = ctypes.c_size_t()
call("cuCtxGetLimit", ctypes.byref(limit), 0)
stack = limit.value
step, expected, fold = 0, 0, 0
while True:
    while todo:
        what = todo.pop()
        if what == "look":
            call("cuCtxGetLimit", ctypes.byref(limit), 0)
            assert limit.value == stack
        # The fold before it runs once, whatever becomes of the change.
        elif what == "change":
            launch("fold", weights, state, room)
            expected = (expected * 7 + fold) % 2**32
            launch("change", state)
            words[0] = (words[0] + 1) % 2**32
        else:
            call("cuMemsetD32_v2", weights, 5, 1)
            words[0] = 5
    launch("fold", weights, state, room)
    call("cuMemcpyDtoH_v2", seen, state, 8)
    fold = 0
    for word in words:
        fold = (fold * 31 + word) % 2**32
    expected = (expected * 7 + fold) % 2**32
    print(step if list(seen) == [expected, fold] else "wrong", flush=True)
    step += 1
    time.sleep(0.02)
