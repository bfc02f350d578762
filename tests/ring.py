"""Asks for an io_uring before GO is there and after, as libraries do that can do without: its descriptor, or the error."""

import ctypes
import errno
import os
import sys
import time

IO_URING_SETUP = 425
syscall = ctypes.CDLL(None, use_errno=True).syscall
held = []


def ask():
    descriptor = syscall(IO_URING_SETUP, 4, ctypes.create_string_buffer(120))
    if descriptor < 0:
        return errno.errorcode[ctypes.get_errno()]
    held.append(descriptor)
    return str(descriptor)


print(ask(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print(ask(), flush=True)
