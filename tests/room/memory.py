"""A program that has most of a GPU, and knows what it has there: `weights` that are written once, and a `state`.

memory.py COMMANDS WEIGHTS STATE     does each line of the file COMMANDS, and prints it with what came of it

weights SEED   writes the weights anew
state N        writes N to all of the state
kernel N       the same by a kernel that has its address as an argument
hidden N       the same by a kernel that finds its address in memory
move N         the same by copies within the GPU
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from gpu import Module, call, open_device  # noqa: E402

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
"""


class Memory:
    def __init__(self, weights, state):
        self.context = open_device()
        # With an address in its first half. What lies lowest is copied first.
        self.table, self.states = int(call("cuMemAlloc", 2 * CHUNK)), Module(STATES)
        self.weights_bytes, self.state_bytes = weights, state
        self.weights_at, self.state_at = int(call("cuMemAlloc", weights)), int(call("cuMemAlloc", state))
        self.seed, self.number, self.held, self.modules = 0, 0, [], {}
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
        self.number = number
        for chunk in range(self.state_bytes // CHUNK):
            call("cuMemsetD32", self.state_at + chunk * CHUNK, number << 8 | chunk, CHUNK // 4)
        call("cuCtxSynchronize")
        return "written"

    def point(self):
        call("cuMemcpyHtoD", self.table, np.array([self.state_at], np.uint64).ctypes.data, 8)

    def kernel(self, number):
        return self.launched(self.states.named, self.state_at, number)

    def hidden(self, number):
        return self.launched(self.states.found, self.table, number)

    def launched(self, kernel, address, number):
        self.number = number
        kernel(self.state_bytes // CHUNK, 128, address, np.uint32(number))
        call("cuCtxSynchronize")
        return "written"

    def move(self, number):
        """Out of the second half of the table."""
        self.number = number
        for chunk in range(self.state_bytes // CHUNK):
            call("cuMemsetD32", self.table + CHUNK, number << 8 | chunk, CHUNK // 4)
            call("cuMemcpyDtoDAsync", self.state_at + chunk * CHUNK, self.table + CHUNK, CHUNK, 0)
        call("cuCtxSynchronize")
        return "written"

    def is_state(self, number):
        found = self.read(self.state_at, self.state_bytes).reshape(-1, CHUNK // 4)
        return bool((found == (number << 8 | np.arange(len(found), dtype=np.uint32))[:, None]).all())

    def read(self, address, size):
        words = np.empty(size // 4, np.uint32)
        call("cuMemcpyDtoH", words.ctypes.data, address, size)
        return words

    def check(self):
        same = bool(np.array_equal(self.read(self.weights_at, self.weights_bytes), self.words()))
        return f"weights {same} state {self.is_state(self.number)}"

    def renew(self, number):
        call("cuMemFree", self.state_at)
        self.state_at = int(call("cuMemAlloc", self.state_bytes))
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


def main():
    commands, (weights, state) = Path(sys.argv[1]), map(int, sys.argv[2:4])
    memory, done = Memory(weights, state), 0
    print("ready", flush=True)
    while True:
        lines = commands.read_text().split("\n")[:-1] if commands.exists() else []
        for line in lines[done:]:
            name, *numbers = line.split()
            print(line, getattr(memory, name)(*map(int, numbers)), flush=True)
        done = max(done, len(lines))
        time.sleep(0.005)


main()
