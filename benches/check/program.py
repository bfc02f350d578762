"""The mappings, pages and threads of a PyTorch program, without PyTorch.

program.py MAPPINGS PAGES THREADS
"""

import mmap
import sys
import threading

PAGE = 4096
# Pages in a row, and then one left out: each row is an entry of the page map.
ROW = 15


def main():
    mappings, pages, threads = map(int, sys.argv[1:])
    kept = []
    for number in range(mappings):
        # Two that follow each other differ, so that they stay two.
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if number % 2 else 0)
        kept.append(mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection))
    memory = mmap.mmap(-1, (pages // ROW + 1) * (ROW + 1) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for row in range(pages // ROW):
        for page in range(ROW):
            memory[(row * (ROW + 1) + page) * PAGE] = 1
    never = threading.Event()
    for _ in range(threads):
        threading.Thread(target=never.wait, daemon=True).start()
    print("ready", flush=True)
    never.wait()


main()
