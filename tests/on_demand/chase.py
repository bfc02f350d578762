"""Follows lists through GPU memory once it may go, and prints a digest of all that came of it.

    chase.py KIND GO        prints `ready`, waits for the file GO, then prints lines and `done`

Kinds, by what a restored program meets first: `hidden` reaches most of its buffers by addresses in memory alone; `named`
names all of them in its launches, one at a time; `streams` does so in one stream while another needs little; the others
are `hidden` with something in front.
"""

import hashlib
import os
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from gpu import Module, at, call, download, driver, open_device  # noqa: E402

NODES = 24
WORDS = int(os.environ.get("CHASE_WORDS", (1 << 20) // 4 + 512))
THREADS = 64
# Of larger nodes the rest stays as it is.
SEEN = 1 << 20

SOURCE = r"""
struct Node { Node *next; unsigned int words[1]; };

// Each thread changes a word of every node that it comes to, by what it has seen so far.
extern "C" __global__ void chase(Node *node, unsigned int *seen, int steps, int salt)
{
    unsigned int sum = salt;
    for (int n = 0; n < steps && node; n++) {
        unsigned int *word = &node->words[threadIdx.x * 97 + n];
        sum = sum * 31 + *word;
        *word = *word * 5 + sum;
        node = node->next;
    }
    seen[threadIdx.x] = seen[threadIdx.x] * 7 + sum;
}

extern "C" __global__ void mix(Node *node, unsigned int *seen, int salt)
{
    unsigned int *word = &node->words[threadIdx.x * 97];
    *word = *word * 3 + salt;
    seen[threadIdx.x] = seen[threadIdx.x] * 7 + *word;
}

extern "C" __global__ void say(Node *node, int number)
{
    printf("kernel %d %u\n", number, node->words[5]);
}

// The counter's address lies in memory.
extern "C" __global__ void count(unsigned int **where) { **where += 1; }
"""


class Program:
    def __init__(self):
        open_device()
        self.module = Module(SOURCE)
        for name in ("chase", "mix", "say", "count"):
            self.module.function(name)
        rng = random.Random(5)
        self.nodes = [int(call("cuMemAlloc", WORDS * 4)) for _ in range(NODES)]
        self.seen = int(call("cuMemAlloc", THREADS * 4))
        order = self.nodes[:]
        rng.shuffle(order)
        self.head = order[0]
        for node, after in zip(order, [*order[1:], 0]):
            words = np.resize(np.frombuffer(random.Random(node).randbytes(min(WORDS, SEEN) * 4), np.uint32), WORDS)
            words[0:2] = (after & 0xFFFFFFFF, after >> 32)
            call("cuMemcpyHtoD", node, words.ctypes.data, words.nbytes)
        call("cuMemsetD32", self.seen, 1, THREADS)
        self.lanes = [int(call("cuStreamCreate", 1)) for _ in range(2)]
        self.event = call("cuEventCreate", 2)
        self.apart = int(call("cuMemAlloc", THREADS * 4))
        call("cuMemsetD32", self.apart, 1, THREADS)
        self.marks = [call("cuEventCreate", 0) for _ in range(2)]
        self.counter = at(call("cuMemHostAlloc", 4096, 3), 4, np.uint32)
        self.counter[:] = 0
        self.where = int(call("cuMemAlloc", 1 << 20))
        address = np.array([self.counter.ctypes.data], np.uint64)
        call("cuMemcpyHtoD", self.where, address.ctypes.data, 8)
        self.kept = []
        call("cuCtxSynchronize")

    def chase(self, salt, stream=0, steps=NODES):
        self.kept.append(self.module.chase(1, THREADS, self.head, self.seen, steps, salt, stream=stream))

    def many_streams(self):
        """Work in two streams that do not wait for the legacy one, ordered by an event; copies, fills and uploads among it."""
        one, other = self.lanes
        words = np.arange(300, dtype=np.uint32)
        self.chase(1, one)
        call("cuMemcpyHtoDAsync", self.nodes[3] + 4096, words.ctypes.data, words.nbytes, one)
        words[:] = 0
        call("cuEventRecord", self.event, one)
        call("cuStreamWaitEvent", other, self.event, 0)
        call("cuMemcpyDtoDAsync", self.nodes[4] + 8192, self.nodes[3] + 4096, 1200, other)
        call("cuMemsetD32Async", self.nodes[5] + 16, 77, 1000, other)
        self.chase(2, other)
        call("cuEventRecord", self.event, other)
        call("cuStreamWaitEvent", one, self.event, 0)
        self.chase(3, one)

    def named(self):
        for n, node in enumerate(reversed(self.nodes)):
            self.kept.append(self.module.mix(1, THREADS, node, self.seen, n))

    def streams(self):
        """One stream comes to the last buffer in the end, another needs one; what follows needs both."""
        one, other = self.lanes
        for n, node in enumerate(self.nodes[1:]):
            self.kept.append(self.module.mix(1, THREADS, node, self.seen, n, stream=one))
        call("cuEventRecord", self.marks[1], one)
        call("cuMemsetD32Async", self.nodes[1] + 4096, 5, 100, one)
        self.kept.append(self.module.mix(1, THREADS, self.nodes[0], self.apart, 50, stream=other))
        call("cuEventRecord", self.marks[0], other)
        call("cuStreamWaitEvent", other, self.marks[1], 0)
        self.kept.append(self.module.mix(1, THREADS, self.nodes[0], self.seen, 51, stream=other))
        call("cuEventRecord", self.event, other)
        call("cuStreamWaitEvent", one, self.event, 0)
        self.kept.append(self.module.mix(1, THREADS, self.nodes[3], self.seen, 52, stream=one))
        # The default stream waits for neither, so that it is led there.
        call("cuEventRecord", self.marks[1], one)
        call("cuStreamWaitEvent", 0, self.marks[1], 0)
        call("cuMemcpyDtoDAsync", self.nodes[5] + 4096, self.nodes[0] + 4096, 400, 0)

    def graph(self):
        self.kept.append(self.module.mix(1, THREADS, self.nodes[7], self.seen, 3))
        for _ in range(3):
            call("cuGraphLaunch", self.exec, 0)

    def prepare_graph(self):
        stream = self.lanes[0]
        call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
        self.chase(11, stream)
        self.kept.append(self.module.mix(1, THREADS, self.nodes[2], self.seen, 12, stream=stream))
        graph = call("cuStreamEndCapture", stream)
        self.exec = call("cuGraphInstantiate", graph, 0)

    def threads(self):
        """Four threads, each with its own ring and default stream, one after the other."""
        turn = threading.Semaphore(0)
        turns = [turn, *(threading.Semaphore(0) for _ in range(4))]

        def work(n):
            call("cuCtxSetCurrent", self.context)
            turns[n].acquire()
            self.chase(20 + n)
            turns[n + 1].release()

        self.context = call("cuCtxGetCurrent")
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        [thread.start() for thread in threads]
        turn.release()
        [thread.join() for thread in threads]

    def say(self):
        for n in range(3):
            self.kept.append(self.module.say(1, 1, self.nodes[0], n))
        self.chase(9)
        for n in range(3, 6):
            self.kept.append(self.module.say(1, 1, self.nodes[0], n))

    def count(self):
        """Pinned memory that a kernel finds by an address in memory, before and after others meet what is not loaded."""
        for _ in range(2):
            self.kept.append(self.module.count(1, 1, self.where))
        self.chase(4)
        self.kept.append(self.module.count(1, 1, self.where))

    def bad(self):
        """A fault of the program's own."""
        self.chase(1)
        self.kept.append(self.module.count(1, 1, self.nodes[0] + 64))

    def digest(self):
        call("cuCtxSynchronize")
        digest = hashlib.sha256()
        for node in self.nodes:
            digest.update(download(node, min(WORDS, SEEN), np.uint32).tobytes())
        digest.update(download(self.seen, THREADS, np.uint32).tobytes())
        digest.update(download(self.apart, THREADS, np.uint32).tobytes())
        digest.update(self.counter.tobytes())
        return digest.hexdigest()


def main():
    kind, go = sys.argv[1:3]
    program = Program()
    if kind == "graph":
        program.prepare_graph()
    print("ready", flush=True)
    while not os.path.exists(go):
        time.sleep(0.002)
    try:
        if kind == "hidden":
            program.many_streams()
        else:
            getattr(program, kind)()
        # At once: kernels print meanwhile.
        os.write(1, b"issued\n")
        print(program.digest(), flush=True)
        program.chase(40)
        print(program.digest(), int(program.counter[0]), flush=True)
        if kind == "streams":
            print("apart", f"{call('cuEventElapsedTime', *program.marks):.0f}", "ms", flush=True)
    except RuntimeError as error:
        print(f"error {str(error).split()[0]}", flush=True)
    print("done", flush=True)
    while os.path.exists(f"{go}.stay"):
        time.sleep(0.01)


main()
