"""Computes on the GPU from several threads and checks itself all the time. `checks.py END`; prints a line now and then, and `ok` once there is END.

Between its turns a thread rests: tests have few processors between them.
"""

import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "features"))

import numpy as np
from gpu import ADD, Module, at, call, download, open_device, upload

THREADS = 3
MANY = 25
REST = 0.004
NUMBERS = 1024
# Of these there is much that nobody writes to.
STILL = 3_000_000

context = open_device()
module = Module(ADD)
still = np.random.default_rng(1).random(STILL, np.float32)
lies = upload(still)
failures = []


def same(found, expected):
    if not np.array_equal(found, expected):
        raise AssertionError(f"{found[:4]} where {expected[:4]} were expected")


def compute(index):
    call("cuCtxSetCurrent", context)
    stream = call("cuStreamCreate", 1)
    pinned = at(call("cuMemHostAlloc", 4 * NUMBERS, 0), NUMBERS)
    expected = np.zeros(NUMBERS, np.float32)
    kept = upload(expected)
    turns = 0
    while not os.path.exists(sys.argv[1]):
        turns += 1
        step = float(1 + turns % (5 + index))
        module.add(NUMBERS // 128, 128, kept, step, NUMBERS, stream=stream)
        expected += np.float32(step)
        # A float has room for whole numbers below this.
        if turns % 1000 == 0:
            call("cuMemsetD32Async", kept, 0, NUMBERS, stream)
            expected[:] = 0
        call("cuMemcpyDtoHAsync", pinned.ctypes.data, kept, 4 * NUMBERS, stream)
        call("cuStreamSynchronize", stream)
        same(pinned, expected)
        passing = upload(expected)
        same(download(passing, NUMBERS), expected)
        call("cuMemFree", passing)
        time.sleep(REST)
        if turns % MANY == 0:
            same(download(lies, STILL), still)
            print(index, turns, flush=True)
    same(download(kept, NUMBERS), expected)


def watched(index):
    try:
        compute(index)
    except Exception as error:
        failures.append(f"{index}: {error}")
        print(failures[-1], flush=True)
        os._exit(1)


print("ready", flush=True)
threads = [threading.Thread(target=watched, args=(index,)) for index in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("ok", flush=True)
