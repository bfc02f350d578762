"""A program that has most of a GPU, and knows what it has there: `weights` that are written once, and a `state`.

memory.py COMMANDS WEIGHTS STATE [twice | both]     does each line of the file COMMANDS, and prints it with what came of it

With `twice` the state is mapped at two addresses, and kernels have the second one; with `both` there is all of it on each of two GPUs.

weights SEED   writes the weights anew
state N        writes N to all of the state
kernel N       the same by a kernel that has its address as an argument
hidden N       the same by a kernel that finds its address in memory
tail N         the same, to the last chunk
cast N         the same by a kernel whose name calls it constant, and whose code calls a function
called N       the same by a kernel whose name says nothing, and whose code calls a function
move N         the same by copies within the GPU
seen           adds all of the state up, by a kernel whose name says nothing of it, and looks whether the sums are right
constant       the same by a kernel whose name calls the state constant, and whose code calls a function
capture        makes a graph of the first
replay         does the same by that graph
check          compares all with what it should be
renew N        frees the state, and takes another one of the same size
free           frees the state, and has none any more
code N         loads a module more, whose kernel fills as much as a chunk with N, and looks what all that are loaded fill it with
fill BYTES     takes so much memory, waiting for it
busy           writes to all of the state from now on, and looks at each pass whether it is there
calm           no more, and how often it found something else
codes          what the kernels of all modules fill memory with
"""

import sys
import threading
import time
from pathlib import Path

import numpy as np

for beside in ("features", "told"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / beside))

from cuda.bindings import driver  # noqa: E402
from gpu import Module, call, open_device  # noqa: E402
from told import lines  # noqa: E402

# The number is a part of the code.
FILL = 'extern "C" __global__ void fill(unsigned *to) { to[blockIdx.x * blockDim.x + threadIdx.x] = NUMBERu; }'
CHUNK = 1 << 20
# One block for each chunk.
STATES = """
__device__ void fill(unsigned *state, unsigned number) {
    for (int at = threadIdx.x; at < 1 << 18; at += blockDim.x)
        state[blockIdx.x << 18 | at] = number << 8 | blockIdx.x;
}
extern "C" __global__ void named(unsigned *state, unsigned number) { fill(state, number); }
extern "C" __global__ void found(unsigned **state, unsigned number) { fill(*state, number); }

__device__ __noinline__ void fill_by_call(unsigned *state, unsigned number) { fill(state, number); }
__global__ void cast(const unsigned *state, unsigned number) { fill_by_call((unsigned *)state, number); }
extern "C" __global__ void called(unsigned *state, unsigned number) { fill_by_call(state, number); }

__device__ unsigned sum(unsigned *state) {
    unsigned sum = 0;
    for (int at = threadIdx.x; at < 1 << 18; at += blockDim.x)
        sum += state[blockIdx.x << 18 | at];
    return sum;
}
__device__ __noinline__ unsigned sum_by_call(const unsigned *state) { return sum((unsigned *)state); }
extern "C" __global__ void seen(unsigned *state, unsigned *sums) { atomicAdd(&sums[blockIdx.x], sum(state)); }
__global__ void constant(const unsigned *state, unsigned *sums) { atomicAdd(&sums[blockIdx.x], sum_by_call(state)); }
"""


class Memory:
    def __init__(self, weights, state, device=0, times=0):
        self.context = open_device(device)
        # With an address in its first half. What lies lowest is copied first.
        self.table, self.states = int(call("cuMemAlloc", 2 * CHUNK)), Module(STATES)
        self.weights_bytes, self.state_bytes = weights, state
        self.weights_at = int(call("cuMemAlloc", weights))
        places = mapped(state, device, times) if times else [int(call("cuMemAlloc", state))]
        self.state_at, self.kernels_at = places[0], places[-1]
        self.seed, self.number, self.tail_number, self.held, self.modules = 0, 0, None, [], {}
        call("cuMemsetD32", self.table + CHUNK, 0, CHUNK // 4)
        self.point()
        self.stop, self.wrong, self.passes = threading.Event(), 0, 0
        self.weights(1)
        self.state(1)

    def words(self):
        return np.random.default_rng(self.seed).integers(0, 1 << 32, self.weights_bytes // 4, np.uint32)

    def weights(self, seed):
        self.seed = seed
        words = self.words()
        call("cuMemcpyHtoD", self.weights_at, words.ctypes.data, words.nbytes)
        return "written"

    def state(self, number):
        """Each chunk its own, so that none is as another one."""
        self.number, self.tail_number = number, None
        for chunk in range(self.state_bytes // CHUNK):
            call("cuMemsetD32", self.state_at + chunk * CHUNK, number << 8 | chunk, CHUNK // 4)
        call("cuCtxSynchronize")
        return "written"

    def point(self):
        call("cuMemcpyHtoD", self.table, np.array([self.state_at, self.state_at + self.state_bytes - CHUNK], np.uint64).ctypes.data, 16)

    def kernel(self, number):
        return self.launched(self.states.named, self.kernels_at, number)

    def hidden(self, number):
        return self.launched(self.states.found, self.table, number)

    def tail(self, number):
        self.tail_number = number
        self.states.found(1, 128, self.table + 8, np.uint32(number))
        call("cuCtxSynchronize")
        return "written"

    def cast(self, number):
        return self.launched(self.states._Z4castPKjj, self.state_at, number)

    def called(self, number):
        return self.launched(self.states.called, self.state_at, number)

    def launched(self, kernel, address, number):
        self.number, self.tail_number = number, None
        kernel(self.state_bytes // CHUNK, 128, address, np.uint32(number))
        call("cuCtxSynchronize")
        return "written"

    def seen(self):
        return self.summed(self.states.seen)

    def constant(self):
        return self.summed(self.states._Z8constantPKjPj)

    def summed(self, kernel, stream=0):
        kernel(self.state_bytes // CHUNK, 128, self.state_at, self.table + CHUNK, stream=stream)
        return self.are_sums() if stream == 0 else "captured"

    def are_sums(self):
        """Whether they are right. They lie in the second half of the table, which is cleared for the next ones."""
        chunks = np.arange(self.state_bytes // CHUNK, dtype=np.uint32)
        found = self.read(self.table + CHUNK, 4 * len(chunks))
        call("cuMemsetD32", self.table + CHUNK, 0, len(chunks))
        return f"right {np.array_equal(found, (self.number << 8 | chunks) << 18)}"

    def capture(self):
        stream = call("cuStreamCreate", 0)
        call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        made = self.summed(self.states.seen, stream)
        self.graph = call("cuGraphInstantiate", call("cuStreamEndCapture", stream), 0)
        return made

    def replay(self):
        call("cuGraphLaunch", self.graph, 0)
        return self.are_sums()

    def move(self, number):
        """Out of the second half of the table."""
        self.number, self.tail_number = number, None
        for chunk in range(self.state_bytes // CHUNK):
            call("cuMemsetD32", self.table + CHUNK, number << 8 | chunk, CHUNK // 4)
            call("cuMemcpyDtoDAsync", self.state_at + chunk * CHUNK, self.table + CHUNK, CHUNK, 0)
        call("cuCtxSynchronize")
        return "written"

    def is_state(self, number):
        found = self.read(self.state_at, self.state_bytes).reshape(-1, CHUNK // 4)
        expected = number << 8 | np.arange(len(found), dtype=np.uint32)
        if self.tail_number is not None:
            expected[-1] = self.tail_number << 8
        return bool((found == expected[:, None]).all())

    def read(self, address, size):
        words = np.empty(size // 4, np.uint32)
        call("cuMemcpyDtoH", words.ctypes.data, address, size)
        return words

    def check(self):
        same = bool(np.array_equal(self.read(self.weights_at, self.weights_bytes), self.words()))
        return f"weights {same} state {self.is_state(self.number)}"

    def renew(self, number):
        call("cuMemFree", self.state_at)
        self.state_at = self.kernels_at = int(call("cuMemAlloc", self.state_bytes))
        self.point()
        return self.state(number)

    def free(self):
        call("cuMemFree", self.state_at)
        self.state_at, self.state_bytes = 0, 0
        return "gone"

    def code(self, number):
        self.modules[number] = Module(FILL.replace("NUMBER", str(number)))
        return self.codes()

    def codes(self):
        """What the kernel of each module fills memory with."""
        address, found = int(call("cuMemAlloc", CHUNK)), []
        for module in self.modules.values():
            module.fill(CHUNK // 4 // 128, 128, address)
            found += sorted(set(self.read(address, CHUNK).tolist()))
        call("cuMemFree", address)
        return " ".join(map(str, found))

    def fill(self, size):
        self.held.append(call("cuMemAlloc", size))
        return "taken"

    def busy(self):
        def write():
            call("cuCtxSetCurrent", self.context)
            while not self.stop.is_set():
                self.state(self.number % 1000 + 1)
                self.wrong += not self.is_state(self.number)
                self.passes += 1

        self.thread = threading.Thread(target=write)
        self.thread.start()
        return "begun"

    def calm(self):
        before = self.passes
        while self.passes < before + 2:
            time.sleep(0.005)
        self.stop.set()
        self.thread.join()
        return f"wrong {self.wrong}"


def mapped(size, device, times):
    """The addresses of memory that is mapped so often."""
    properties, access = driver.CUmemAllocationProp(), driver.CUmemAccessDesc()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    for location in (properties.location, access.location):
        location.type, location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    handle = call("cuMemCreate", size, properties, 0)
    places = [int(call("cuMemAddressReserve", size, 0, 0, 0)) for _ in range(times)]
    for address in places:
        call("cuMemMap", address, size, 0, handle, 0)
        call("cuMemSetAccess", address, size, [access], 1)
    return places


def on_each(memories, name, numbers):
    """What came of it, which is the same on each GPU."""
    found = set()
    for memory in memories:
        call("cuCtxSetCurrent", memory.context)
        found.add(getattr(memory, name)(*numbers))
    return " or ".join(sorted(found))


def main():
    (weights, state), how = map(int, sys.argv[2:4]), sys.argv[4:]
    memories = [Memory(weights, state, device, 2 if how == ["twice"] else 0) for device in range(2 if how == ["both"] else 1)]
    print("ready", flush=True)
    for line in lines(Path(sys.argv[1])):
        name, *numbers = line.split()
        print(line, on_each(memories, name, [int(number) for number in numbers]), flush=True)


main()
