#!/usr/bin/env python3
"""Which of the driver's calls wait for what the GPU has to do, and which calls of other threads wait for those.

    benches/gpu/probes/waiting.py --out FILE

A kernel waits for a value in memory of the host, or a stream does (`cuStreamWaitValue32`). Meanwhile one thread makes the call. If it
does not return, other threads record an event and launch a kernel, on the same GPU and on another if there is one.
"""

import argparse
import ctypes
import itertools
import json
import threading
import time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
# How long a call may take that does not wait, in seconds.
SHORT = 0.15
MB = 1 << 20
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 flag) {
  .reg .pred p; .reg .u32 r; .reg .u64 a;
  ld.param.u64 a, [flag];
again:
  ld.volatile.global.u32 r, [a];
  setp.eq.u32 p, r, 0;
  @p bra again;
  ret;
}
.visible .entry nothing() { ret; }
"""
OTHER_PTX = PTX.replace(b"nothing", b"other")
PTX_KIND = 1


def ask(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise RuntimeError(f"{name}: {code}")


class Location(ctypes.Structure):
    _fields_ = [("kind", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("kind", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p), ("flags", ctypes.c_ubyte * 8)]


class AccessOf(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class Gpu:
    def __init__(self, number):
        self.number, self.context, device = number, c_void_p(), c_int()
        ask("cuDeviceGet", byref(device), number)
        ask("cuDevicePrimaryCtxRetain", byref(self.context), device)
        self.bind()
        self.module, self.nothing, self.spin = c_void_p(), c_void_p(), c_void_p()
        ask("cuModuleLoadData", byref(self.module), c_char_p(PTX))
        for name in ("nothing", "spin"):
            ask("cuModuleGetFunction", byref(getattr(self, name)), self.module, name.encode())
        self.streams = [self.made("cuStreamCreate", c_void_p, 1) for _ in range(3)]
        self.event = self.made("cuEventCreate", c_void_p, 2)
        self.launch(self.nothing, 1)
        ask("cuCtxSynchronize")

    def bind(self):
        ask("cuCtxSetCurrent", self.context)

    def made(self, call, kind, *arguments):
        value = kind()
        ask(call, byref(value), *arguments)
        return value

    def wait(self, work, flag):
        """Has the first stream wait until the flag is set."""
        address = c_uint64(ctypes.addressof(flag))
        if work == "kernel":
            self.launch(self.spin, 0, address)
        else:
            ask("cuStreamWaitValue32_v2", self.streams[0], address, 1, 1)

    def launch(self, function, stream, *values):
        parameters = (c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        ask("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, self.streams[stream], parameters if values else None, None)

    def record(self):
        ask("cuEventRecord", self.event, self.streams[1])

    def properties(self):
        return Properties(kind=1, location=Location(1, self.number))

    def access(self):
        return AccessOf(Location(1, self.number), 3)


def page_aligned(bytes):
    libc = ctypes.CDLL(None)
    libc.mmap.restype = c_void_p
    return libc.mmap(None, c_size_t(bytes), 3, 0x22, -1, c_size_t(0))


def cubin_of(text, name):
    """What PTX is compiled to, with kernels of that name."""
    state, made, bytes = c_void_p(), c_void_p(), c_size_t()
    text = text.replace(b"nothing", name) + b"\0"
    ask("cuLinkCreate_v2", 0, None, None, byref(state))
    ask("cuLinkAddData_v2", state, PTX_KIND, c_char_p(text), c_size_t(len(text)), b"text", 0, None, None)
    ask("cuLinkComplete", state, byref(made), byref(bytes))
    return ctypes.string_at(made, bytes.value)


def calls(gpu):
    """Of each call: what is made before it, the call itself, and what is to be undone behind it."""
    bytes = 32 * MB
    made = {}

    def keep(name, value):
        made[name] = value
        return value

    def reserved():
        return keep("at", gpu.made("cuMemAddressReserve", c_uint64, c_size_t(bytes), c_size_t(0), c_uint64(0), c_uint64(0)))

    def handle():
        return keep("memory", gpu.made("cuMemCreate", c_uint64, c_size_t(bytes), byref(gpu.properties()), c_uint64(0)))

    def map_it():
        ask("cuMemMap", made["at"], c_size_t(bytes), c_size_t(0), made["memory"], c_uint64(0))

    def allow():
        ask("cuMemSetAccess", made["at"], c_size_t(bytes), byref(gpu.access()), c_size_t(1))

    def many(*steps):
        def run():
            for step in steps:
                step()

        return run

    def used():
        """By a kernel, and by a copy engine."""
        ask("cuMemsetD8_v2", made["at"], 1, c_size_t(bytes))
        ask("cuMemcpyDtoD_v2", made["at"], c_uint64(made["at"].value + bytes // 2), c_size_t(bytes // 2))
        ask("cuCtxSynchronize")

    def registered():
        keep("host", c_uint64(page_aligned(bytes)))
        ctypes.memset(made["host"].value, 1, bytes)

    unmap = lambda: ask("cuMemUnmap", made["at"], c_size_t(bytes))
    release = lambda: ask("cuMemRelease", made["memory"])
    unreserve = lambda: ask("cuMemAddressFree", made["at"], c_size_t(bytes))
    register = lambda: ask("cuMemHostRegister_v2", made["host"], c_size_t(bytes), 3)
    unregister = lambda: ask("cuMemHostUnregister", made["host"])
    alloc = lambda: keep("device", gpu.made("cuMemAlloc_v2", c_uint64, c_size_t(bytes)))
    free = lambda: ask("cuMemFree_v2", made["device"])
    host_alloc = lambda: keep("host", gpu.made("cuMemHostAlloc", c_uint64, c_size_t(bytes), 0))
    host_free = lambda: ask("cuMemFreeHost", made["host"])
    load = lambda: keep("module", gpu.made("cuModuleLoadData", c_void_p, c_char_p(OTHER_PTX)))
    unload = lambda: ask("cuModuleUnload", made["module"])

    def function():
        keep("function", c_void_p())
        ask("cuModuleGetFunction", byref(made["function"]), made["module"], b"other")

    first = lambda: gpu.launch(made["function"], 2)
    cubin = cubin_of(PTX, b"other")
    load_cubin = lambda: keep("module", gpu.made("cuModuleLoadData", c_void_p, c_char_p(cubin)))
    library = lambda: keep("library", gpu.made("cuLibraryLoadData", c_void_p, c_char_p(cubin), None, None, 0, None, None, 0))
    end_library = lambda: ask("cuLibraryUnload", made["library"])

    def kernel():
        keep("kernel", c_void_p())
        ask("cuLibraryGetKernel", byref(made["kernel"]), made["library"], b"other")

    kernels_function = lambda: keep("function", gpu.made("cuKernelGetFunction", c_void_p, made["kernel"]))
    pageable = lambda: keep("pageable", ctypes.create_string_buffer(4 * MB))
    up = lambda: ask("cuMemcpyHtoDAsync_v2", made["device"], made["pageable"], c_size_t(4 * MB), gpu.streams[2])
    up_and_wait = lambda: ask("cuMemcpyHtoD_v2", made["device"], made["pageable"], c_size_t(4 * MB))
    down = lambda: ask("cuMemcpyDtoHAsync_v2", made["pageable"], made["device"], c_size_t(4 * MB), gpu.streams[2])
    stream = lambda: keep("stream", gpu.made("cuStreamCreate", c_void_p, 1))
    end_stream = lambda: ask("cuStreamDestroy_v2", made["stream"])
    event = lambda: keep("event", gpu.made("cuEventCreate", c_void_p, 2))
    end_event = lambda: ask("cuEventDestroy_v2", made["event"])
    stack = lambda bytes: lambda: ask("cuCtxSetLimit", 0, c_size_t(bytes))
    context = lambda: (keep("context", c_void_p()), ask("cuCtxCreate_v2", byref(made["context"]), 0, gpu.number), gpu.bind())
    end_context = lambda: ask("cuCtxDestroy_v2", made["context"])
    nothing = lambda: None
    graph = lambda: keep("graph", gpu.made("cuGraphCreate", c_void_p, 0))
    instance = lambda: keep("instance", gpu.made("cuGraphInstantiateWithFlags", c_void_p, made["graph"], c_uint64(0)))
    end_instance = lambda: ask("cuGraphExecDestroy", made["instance"])
    return {
        "cuEventRecord": (nothing, gpu.record, nothing),
        "cuMemHostRegister": (registered, register, unregister),
        "cuMemHostUnregister": (many(registered, register), unregister, nothing),
        "cuMemHostAlloc": (nothing, host_alloc, host_free),
        "cuMemFreeHost": (host_alloc, host_free, nothing),
        "cuMemAlloc": (nothing, alloc, free),
        "cuMemFree": (alloc, free, nothing),
        "cuMemAddressReserve": (nothing, reserved, unreserve),
        "cuMemAddressFree": (reserved, unreserve, nothing),
        "cuMemCreate": (nothing, handle, release),
        "cuMemRelease, never mapped": (handle, release, nothing),
        "cuMemMap": (many(reserved, handle), map_it, many(unmap, release, unreserve)),
        "cuMemSetAccess": (many(reserved, handle, map_it), allow, many(unmap, release, unreserve)),
        "cuMemUnmap": (many(reserved, handle, map_it, allow), unmap, many(release, unreserve)),
        "cuMemUnmap of what was used": (many(reserved, handle, map_it, allow, used), unmap, many(release, unreserve)),
        "cuMemRelease of what was used": (many(reserved, handle, map_it, allow, used, unmap), release, unreserve),
        "cuMemRelease, unmapped": (many(reserved, handle, map_it, allow, unmap), release, unreserve),
        "cuMemRelease, mapped": (many(reserved, handle, map_it, allow), release, many(unmap, unreserve)),
        "cuMemUnmap, released": (many(reserved, handle, map_it, allow, release), unmap, unreserve),
        "cuModuleLoadData": (nothing, load, unload),
        "cuModuleLoadData of a cubin": (nothing, load_cubin, unload),
        "cuModuleLoadData of a cubin, again": (nothing, load_cubin, unload),
        "cuModuleGetFunction of a cubin, first": (load_cubin, function, unload),
        "cuLaunchKernel of a cubin, first": (many(load_cubin, function), first, unload),
        "cuLibraryLoadData": (nothing, library, end_library),
        "cuKernelGetFunction": (many(library, kernel), kernels_function, end_library),
        "cuLaunchKernel of a library": (many(library, kernel, kernels_function), first, end_library),
        "cuModuleGetFunction, first": (load, function, unload),
        "cuLaunchKernel, first": (many(load, function), first, unload),
        "cuModuleUnload": (many(load, function, first, lambda: ask("cuCtxSynchronize")), unload, nothing),
        "cuMemcpyHtoDAsync of pageable memory": (many(pageable, alloc), up, free),
        "cuMemcpyHtoD of pageable memory": (many(pageable, alloc), up_and_wait, free),
        "cuMemcpyDtoHAsync to pageable memory": (many(pageable, alloc), down, free),
        "cuStreamCreate": (nothing, stream, end_stream),
        "cuStreamDestroy": (stream, end_stream, nothing),
        "cuEventCreate": (nothing, event, end_event),
        "cuEventDestroy": (event, end_event, nothing),
        "cuCtxSetLimit of the stack, larger": (stack(1024), stack(64 << 10), stack(1024)),
        "cuCtxCreate": (nothing, context, end_context),
        "cuCtxDestroy": (context, end_context, nothing),
        "cuGraphInstantiate": (graph, instance, end_instance),
        "cuGraphExecDestroy": (many(graph, instance), end_instance, nothing),
    }


def begin(gpu, call):
    """A thread that makes the call, and what it will say: how long it took, or its error."""
    said = {}

    def run():
        began = time.monotonic()
        try:
            gpu.bind()
            call()
        except RuntimeError as error:
            said["error"] = str(error)
        said["ms"] = round((time.monotonic() - began) * 1e3, 3)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, said


def tried(gpus, work, flag, name, before, call, behind):
    """Whether the call waits for the work, and whether others wait for the call."""
    gpu = gpus[0]
    gpu.bind()
    before()
    flag[0] = 0
    gpu.wait(work, flag)
    thread, said = begin(gpu, call)
    thread.join(SHORT)
    row = {"work": work, "call": name, "waits": thread.is_alive()}
    others = []
    if row["waits"]:
        for other in gpus:
            for what, of in (("record", other.record), ("launch", lambda other=other: other.launch(other.nothing, 1))):
                others.append((f"{what} on GPU {other.number}", *begin(other, of)))
        time.sleep(SHORT)
        row["others wait"] = {label: other.is_alive() for label, other, _ in others}
    flag[0] = 1
    thread.join()
    for _, other, _ in others:
        other.join()
    gpu.bind()
    ask("cuCtxSynchronize")
    behind()
    return row | said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    ask("cuInit", 0)
    count, version = c_int(), c_int()
    ask("cuDeviceGetCount", byref(count))
    ask("cuDriverGetVersion", byref(version))
    gpus = [Gpu(number) for number in range(min(2, count.value))]
    gpus[0].bind()
    place = gpus[0].made("cuMemHostAlloc", c_uint64, c_size_t(4096), 1)
    flag = (c_uint * 1).from_address(place.value)
    rows = []
    steps = calls(gpus[0])
    for work, name in itertools.product(("kernel", "value"), steps):
        try:
            rows.append(tried(gpus, work, flag, name, *steps[name]))
        except RuntimeError as error:
            flag[0] = 1
            rows.append({"work": work, "call": name, "error": str(error)})
        print(json.dumps(rows[-1]), flush=True)
    with open(given.out, "w") as file:
        json.dump({"driver": version.value, "gpus": len(gpus), "calls": rows}, file, indent=1)


if __name__ == "__main__":
    main()
