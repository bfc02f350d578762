"""64 MB of memory, changed at each step that a test allows: at first all of it, then a part of every 4 MB, then all.

sparse.py DIRECTORY
"""

import hashlib
import mmap
import os
import sys
import time
from pathlib import Path

MB = 1 << 20
MEMORY = mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
STEPS = [range(64), range(0, 64, 4), range(64)]


def main():
    directory = Path(sys.argv[1])
    for number, step in enumerate(STEPS):
        while not (directory / str(number)).exists():
            time.sleep(0.005)
        for at in step:
            MEMORY[at * MB : (at + 1) * MB] = os.urandom(MB)
        told = hashlib.sha256(MEMORY).hexdigest()
        print(told, flush=True)
        while not (directory / f"{number}-restored").exists():
            time.sleep(0.005)
        print(hashlib.sha256(MEMORY).hexdigest(), flush=True)


main()
