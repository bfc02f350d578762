"""Writes to its memory all the time, in an order that it knows, and finds in it what it has written.

writer.py [FILE]    `right N` when so many passes were; `wrong: ...` once, if ever. FILE is opened for direct input and output
                    once it is there: `direct`
"""

import contextlib
import mmap
import os
import random
import sys
import threading
import time

import numpy as np

PAGE = 4096
PAGES = 1024
# Written once, and looked at all the time.
STILL = 3072
# `MADV_GUARD_INSTALL`, of Linux 6.13.
GUARD = 102
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def wrong(what):
    print("wrong:", what, flush=True)
    os._exit(1)


def anonymous(pages):
    return mmap.mmap(-1, pages * PAGE, flags=PRIVATE)


def pass_over(memory, number):
    """Each page is written in its turn, its end after its beginning, and has what the pass before has left."""
    for page in memory:
        if page[0] != number - 1 or page[-1] != number - 1:
            wrong(f"pass {number} found {page[0]} and {page[-1]}")
        page[0] = number
        page[-1] = number


def check(seed, area, fill, pages, given):
    found = [set(area[page * PAGE : (page + 1) * PAGE]) for page in range(2 * pages)]
    if found != [{fill} if page < pages and page != given else {0} for page in range(2 * pages)]:
        wrong(f"seed {seed}: {pages} pages of {fill}, {given} given back: {found}")


def churn(seed):
    """Memory that comes, grows, is moved, given back, forked and goes."""
    draw = random.Random(seed)
    while True:
        fill, pages = draw.randrange(1, 256), draw.randrange(8, 64)
        area = anonymous(pages)
        area.write(bytes([fill]) * (pages * PAGE))
        # What lies in its way has it moved.
        others = [anonymous(4) for _ in range(3)]
        area.resize(2 * pages * PAGE)
        given = draw.randrange(pages)
        area.madvise(mmap.MADV_DONTNEED, given * PAGE, PAGE)
        check(seed, area, fill, pages, given)
        if draw.random() < 0.02:
            if (child := os.fork()) == 0:
                check(seed, area, fill, pages, given)
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                wrong("a child's memory")
            check(seed, area, fill, pages, given)
        for one in others:
            one.close()
        area.close()
        time.sleep(0.001)


def open_awaited(paths):
    if paths and os.path.exists(paths[0]):
        os.open(paths.pop(), os.O_RDWR | os.O_DIRECT)
        print("direct", flush=True)


def main():
    awaited = sys.argv[1:]
    open_awaited(awaited)
    still = np.frombuffer(anonymous(STILL), np.uint64).reshape(STILL, -1)
    still[:] = np.arange(STILL, dtype=np.uint64)[:, None]
    memory = np.frombuffer(anonymous(PAGES), np.uint64).reshape(PAGES, -1)
    guarded = anonymous(4)
    guarded.write(bytes([5]) * (4 * PAGE))
    with contextlib.suppress(OSError):
        guarded.madvise(GUARD, PAGE, PAGE)
    for seed in range(2):
        threading.Thread(target=churn, args=[seed], daemon=True).start()
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        pass_over(memory, number)
        open_awaited(awaited)
        if (still != np.arange(STILL, dtype=np.uint64)[:, None]).any():
            wrong("what was written once")
        if guarded[0] != 5 or guarded[3 * PAGE] != 5:
            wrong("what lies beside a guard")
        if number % 20 == 0:
            print("right", number, flush=True)


main()
