"""A program that is forked while one of its threads waits for its GPU half to be woken.

waking.py GO     says `ready`; when there is a file GO a thread uses the GPU, and a child writes down how many connections it has: GO.child
"""

import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

import numpy as np  # noqa: E402
from gpu import call, download, open_device  # noqa: E402


def connections():
    """How many sockets are open that lead somewhere."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.fromfd(int(name), socket.AF_UNIX, socket.SOCK_STREAM) as copy:
            copy.getpeername()
            found += 1
    return found


def use(context, address):
    call("cuCtxSetCurrent", context)
    print("woken", set(download(address, 1024, np.uint32).tolist()), flush=True)


def main():
    go = Path(sys.argv[1])
    context = open_device()
    address = int(call("cuMemAlloc", 4096))
    call("cuMemsetD32", address, 7, 1024)
    call("cuCtxSynchronize")
    before = connections()
    print("ready", flush=True)
    while not go.exists():
        time.sleep(0.005)
    thread = threading.Thread(target=use, args=[context, address])
    thread.start()
    # It asks, and is not answered yet.
    while connections() == before:
        time.sleep(0.005)
    if os.fork() == 0:
        go.with_suffix(".child").write_text(str(connections()))
        time.sleep(1000)
    thread.join()
    time.sleep(1000)


main()
