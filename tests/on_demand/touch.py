"""Whenever a file appears, changes many pages of its memory and has the GPU work; prints how many of them it waited for.

touch.py GO        prints `ready`, then a line for each GO: `faults COUNT SUM`
"""

import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from gpu import call, open_device  # noqa: E402

PAGES = 2000
PAGE = 4096


def main():
    open_device()
    # Pages that follow one another would come with fewer faults.
    memory = np.ones((2 * PAGES, PAGE), np.uint8)
    buffer = int(call("cuMemAlloc", 1 << 20))
    call("cuMemsetD32", buffer, 7, (1 << 20) // 4)
    back = np.zeros(16, np.uint32)
    print("ready", flush=True)
    while True:
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.002)
        os.unlink(sys.argv[1])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        memory[::2, 0] += 1
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        call("cuMemcpyHtoD", buffer, back.ctypes.data, back.nbytes)
        call("cuMemcpyDtoH", back.ctypes.data, buffer + 64, back.nbytes)
        print("faults", faults, int(memory.sum(dtype=np.int64) + back.sum(dtype=np.int64)), flush=True)


main()
