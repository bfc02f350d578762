"""A tree of processes, on the stand-in driver's GPUs or not, each of which knows at every step what it should hold.

tree.py SEED WRONG

A process shows in its name which of how many it is and how far it has come. One that holds something else than it
should writes that into WRONG, and ends.
"""

import ctypes
import hashlib
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time

SEED, WRONG = int(sys.argv[1]), sys.argv[2]
MOST, SLOT = 4, 8
rng = random.Random(SEED)
PROCESSES = rng.choice([1, 2, 2, 3, MOST])
# One at least.
ON_GPU = rng.sample(range(PROCESSES), rng.randint(1, PROCESSES))
# A root that loads nothing of the driver may start other programs.
STARTS_OTHERS = 0 not in ON_GPU
common = mmap.mmap(-1, SLOT * MOST)


def held(what, found, expected):
    if found != expected:
        with open(WRONG, "a") as out:
            out.write(f"seed {SEED}, process {number} of {PROCESSES}, step {count}: {what} {found!r} in place of {expected!r}\n")
        os.kill(root, signal.SIGKILL)
        os._exit(1)


root, number, count, children = os.getpid(), 0, 0, []
for child in range(1, PROCESSES):
    pid = os.fork()
    if pid == 0:
        number, children = child, []
        break
    children.append(pid)
rng = random.Random(SEED * MOST + number)
driver = None
if number in ON_GPU:
    driver = ctypes.CDLL(os.environ["REKINDLE_LIBCUDA"])
    driver.standin_count.restype = ctypes.c_ulonglong
    held("cuInit", driver.cuInit(0), 0)
    driver.standin_begin(rng.randrange(2))
fixed = rng.randbytes(rng.choice([5000, 1 << 20, 3 << 20]))
digest = hashlib.sha256(fixed).digest()
reader, writer = os.pipe()
os.write(writer, struct.pack("Q", 0))
beside = [0, 0]


def count_beside():
    while True:
        held("a thread's count", beside[0], beside[1])
        beside[0] += 1
        beside[1] += 1
        time.sleep(0.003)


if rng.random() < 0.5:
    threading.Thread(target=count_beside, daemon=True).start()
others = []
while True:
    with open("/proc/self/comm", "w") as name:
        name.write(f"{number}/{PROCESSES}:{count}")
    if driver:
        held("on the GPU", driver.standin_count(rng.choice([0, 0, 500, 5000, 30000])), count)
    held("in shared memory", struct.unpack_from("Q", common, SLOT * number)[0], count)
    struct.pack_into("Q", common, SLOT * number, count + 1)
    held("in the pipe", struct.unpack("Q", os.read(reader, SLOT))[0], count)
    os.write(writer, struct.pack("Q", count + 1))
    if len(others) < 4 and rng.random() < 0.5:
        contents = rng.randbytes(rng.choice([100, 5000, 1 << 18]))
        memory = mmap.mmap(-1, 1 << 19)
        memory[: len(contents)] = contents
        others.append((memory, contents))
    elif others:
        memory, contents = others.pop(rng.randrange(len(others)))
        held("in memory", hashlib.sha256(memory[: len(contents)]).digest(), hashlib.sha256(contents).digest())
        held("behind it", memory[len(contents) :].strip(b"\0"), b"")
        memory.close()
    if count % 8 == 0:
        held("fixed contents", hashlib.sha256(fixed).digest(), digest)
    if number == 0 and STARTS_OTHERS and count % 3 == 0:
        held("another program's end", subprocess.run(["true"]).returncode, 0)
    # One that is killed takes all with it.
    if number and os.getppid() != root:
        os._exit(137)
    for child in children:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            os._exit(137)
    count += 1
    time.sleep(0.02)
