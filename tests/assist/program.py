"""Has memory, whose attributes it changes each time the file of its argument is there. Says what they are."""

import mmap
import pathlib
import sys
import time

order = pathlib.Path(sys.argv[1])
# What is shared is joined with nothing beside it, so `maps` does not show that the attributes change.
memory = mmap.mmap(-1, 3 << 20)
memory.write(b"x" * len(memory))
advice = [mmap.MADV_DONTDUMP, 17]  # The second is MADV_DODUMP.


def is_left_out():
    """Whether it is left out of core dumps, as the kernel has it."""
    text = pathlib.Path("/proc/self/smaps").read_text()
    area = next(part for part in text.split("VmFlags:") if "Size:               3072 kB" in part)
    return "dd" in text[text.index(area) + len(area) :].splitlines()[0].split()


while True:
    if order.exists():
        memory.madvise(advice[0])
        advice.reverse()
        order.unlink()
    print("left out" if is_left_out() else "in", flush=True)
    time.sleep(0.05)
