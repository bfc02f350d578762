"""Counts on the stand-in's GPU: N processes, each on GPU INDEX, into FILE, FILE.1, ... A kernel takes MICROSECONDS."""

import ctypes
import os
import sys
import time

path, processes, index, microseconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
driver = ctypes.CDLL(os.environ["REKINDLE_LIBCUDA"])
driver.standin_count.restype = ctypes.c_ulonglong
for number in range(1, processes):
    if os.fork() == 0:
        path = f"{path}.{number}"
        break
out = open(path, "a", buffering=1)
assert driver.cuInit(0) == 0
driver.standin_begin(index)
while True:
    out.write(f"{driver.standin_count(microseconds)}\n")
    time.sleep(0.01)
