"""Counts on the GPU and prints each number, until there is the file that it is told of. Says `ok` in the end.

`counter.py END [STILL [HELD]]`: how many numbers nobody writes to, and how many MB of the host's memory it has, of which it writes
some with each number.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "features"))

import numpy as np
from gpu import ADD, Module, call, download, open_device, upload

NUMBERS = 128
STILL = int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000

HELD = int(sys.argv[3]) << 20 if len(sys.argv) > 3 else 0
BLOCK = 64 << 10


def block(count):
    """Where is written with this number."""
    at = count * 97 % (HELD // BLOCK) * BLOCK
    return slice(at, at + BLOCK)


held = np.random.default_rng(2).integers(0, 256, HELD, np.uint8)
context = open_device()
module = Module(ADD)
kept = upload(np.zeros(NUMBERS, np.float32))
still = np.random.default_rng(1).random(STILL, np.float32)
lies = upload(still)
count = 0
while not os.path.exists(sys.argv[1]):
    count += 1
    module.add(1, NUMBERS, kept, 1.0, NUMBERS)
    call("cuCtxSynchronize")
    found = download(kept, NUMBERS)
    if not (found == count).all():
        print("wrong", found[:4], "where", count, "was expected", flush=True)
        sys.exit(1)
    if HELD:
        held[block(count)] = count % 251
    print(count, flush=True)
    time.sleep(0.01)
if not np.array_equal(download(lies, STILL), still):
    print("what nobody writes to has changed", flush=True)
    sys.exit(1)
expected = np.random.default_rng(2).integers(0, 256, HELD, np.uint8)
for number in range(1, count + 1 if HELD else 0):
    expected[block(number)] = number % 251
if not np.array_equal(held, expected):
    print("the host's memory is not what it was", flush=True)
    sys.exit(1)
print("ok", flush=True)
