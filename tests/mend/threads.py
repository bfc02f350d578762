"""As `work.py`, with three threads at once, each with memory of its own: `threads.py DIRECTORY`."""

import os
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
from work import REST, N, Work, download, open_device

KINDS = [["kernels", "uploads"], ["pinned_memory", "streams"], ["waits", "allocates", "graphs"]]


def run(directory, number, work):
    open_device()
    kinds, step = KINDS[number], 0
    try:
        while not (directory / "stop").exists():
            getattr(work, kinds[step % len(kinds)])(step % 1000)
            step += 1
            time.sleep(REST)
            if number == 0 and step % 10 == 9:
                (directory / "steps").write_text(str(step))
        assert np.array_equal(download(work.on_a, N, np.uint32), work.a)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main(directory):
    works = [Work() for _ in KINDS]
    print("ready", flush=True)
    threads = [threading.Thread(target=run, args=(directory, number, work)) for number, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("ok 0", flush=True)
    os._exit(0)


main(Path(sys.argv[1]))
