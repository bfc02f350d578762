"""Counts on the stand-in's GPU: N processes, each on GPU INDEX, into FILE, FILE.1, ...

With LIKE_NCCL each process has a socket of the name that NCCL gives the one for sharing memory."""

import ctypes
import os
import socket
import sys
import time

path, processes, index = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
driver = ctypes.CDLL(os.environ["REKINDLE_LIBCUDA"])
driver.standin_count.restype = ctypes.c_ulonglong
for number in range(1, processes):
    if os.fork() == 0:
        path = f"{path}.{number}"
        break
if "LIKE_NCCL" in os.environ:
    sharing = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sharing.bind(f"\0tmp/nccl-socket-0-{os.getpid()}")
out = open(path, "a", buffering=1)
assert driver.cuInit(0) == 0
driver.standin_begin(index)
while True:
    out.write(f"{driver.standin_count(0)}\n")
    time.sleep(0.01)
