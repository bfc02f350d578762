"""A program that is forked while one of its threads has a file of the run directory open, as Rekindle's own have for a moment.

child.py GO     says `ready` when its child is there, and closes the file; says what both have when there is a file GO
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

import numpy as np  # noqa: E402
from gpu import call, download, open_device  # noqa: E402


def main():
    go = Path(sys.argv[1])
    open_device()
    address = int(call("cuMemAlloc", 4096))
    call("cuMemsetD32", address, 7, 1024)
    path = Path(os.environ["REKINDLE_RUN"]) / "first-pages"
    opened, other = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC), os.open("/etc/hostname", os.O_RDONLY)
    child = os.fork()
    if child:
        os.close(opened)
        print("ready", flush=True)
    while not go.exists():
        time.sleep(0.005)
    if child:
        os.waitpid(child, 0)
        print("parent", set(download(address, 1024, np.uint32).tolist()), flush=True)
        return
    has = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    print("child", str(opened) in has, str(other) in has, flush=True)


main()
