"""Counts in GPU memory: each step reads what the one before has written to all of a buffer, and writes its own number.

steps.py LIMIT [FILL]     as many steps as the link LIMIT says: `step N found N-1`; then FILL bytes more, once LIMIT is `fill`,
                          or its end, once LIMIT is `end`
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from gpu import call, open_device  # noqa: E402

BYTES = 24 << 20


def wait_for(condition):
    while not condition(os.readlink(sys.argv[1])):
        time.sleep(0.005)


def main():
    open_device()
    buffer = int(call("cuMemAlloc", BYTES))
    call("cuMemsetD32", buffer, 0, BYTES // 4)
    words = np.zeros(BYTES // 4, np.uint32)
    print("ready", flush=True)
    for step in range(1, 1000):
        wait_for(lambda limit: limit in ("fill", "end") or step <= int(limit))
        match os.readlink(sys.argv[1]):
            case "end":
                return
            case "fill":
                break
        call("cuMemcpyDtoH", words.ctypes.data, buffer, BYTES)
        # All words are one number if these two are.
        found = sorted({int(words.min()), int(words.max())})
        call("cuMemsetD32", buffer, step, BYTES // 4)
        print("step", step, "found", *found, flush=True)
    call("cuMemAlloc", int(sys.argv[2]))
    print("filled", flush=True)
    time.sleep(1000)


main()
