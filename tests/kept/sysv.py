"""System V semaphores, shared memory and message queues."""

import ctypes
import errno
import os
import signal

from kept import main

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
PRIVATE, CREATE, REMOVE = 0, 0o1600, 0
SETVAL, GETVAL = 16, 12
SIZE = 3_000_000


def ok(value):
    assert value not in (-1, 2**64 - 1), os.strerror(ctypes.get_errno())
    return value


def attach(segment):
    return ok(libc.shmat(segment, None, 0))


def change(semaphores, number, by):
    """Waits until that is possible. A process that was stopped begins again: the kernel says EINTR."""
    while libc.semop(semaphores, (ctypes.c_short * 3)(number, by, 0), 1):
        assert ctypes.get_errno() == errno.EINTR


def setup():
    key = os.getpid() | 0x4B000000
    semaphores = ok(libc.semget(key, 3, CREATE))
    for number in range(3):
        ok(libc.semctl(semaphores, number, SETVAL, number * 5))
    shared = ok(libc.shmget(key, SIZE, CREATE))
    address = attach(shared)
    ctypes.memset(address, 7, SIZE)
    gone = ok(libc.shmget(PRIVATE, 4096, CREATE))
    kept = attach(gone)
    ctypes.memset(kept, 8, 4096)
    ok(libc.shmctl(gone, REMOVE, None))
    alone = ok(libc.shmget(PRIVATE, 8192, CREATE))
    there = attach(alone)
    ctypes.memset(there, 9, 8192)
    ok(libc.shmdt(ctypes.c_void_p(there)))
    queue = ok(libc.msgget(key, CREATE))
    for kind, text in ((1, b"first"), (7, b"second")):
        message = ctypes.create_string_buffer(ctypes.c_long(kind).value.to_bytes(8, "little") + text)
        ok(libc.msgsnd(queue, message, len(text), 0))
    child = os.fork()
    if not child:
        # Waits for the semaphore, counts it in both segments, and lets the parent go on.
        while True:
            change(semaphores, 0, -1)
            for at in (address + SIZE - 1, kept):
                ctypes.c_ubyte.from_address(at).value += 1
            change(semaphores, 1, 1)

    def verify():
        assert [libc.semctl(semaphores, number, GETVAL, 0) for number in range(3)] == [0, 5, 10]
        assert (libc.semget(key, 3, 0), libc.shmget(key, SIZE, 0), libc.msgget(key, 0)) == (semaphores, shared, queue)
        assert ctypes.string_at(address, SIZE) == b"\7" * SIZE
        again = attach(shared)
        for rounds in (1, 2):
            change(semaphores, 0, 1)
            change(semaphores, 1, -6)
            ok(libc.semctl(semaphores, 1, SETVAL, 5))
            assert ctypes.c_ubyte.from_address(again + SIZE - 1).value == 7 + rounds
            assert ctypes.c_ubyte.from_address(kept).value == 8 + rounds
        assert ctypes.string_at(attach(alone), 8192) == b"\x09" * 8192
        for kind, text in ((7, b"second"), (1, b"first")):
            message = ctypes.create_string_buffer(108)
            assert ok(libc.msgrcv(queue, message, 100, kind, 0)) == len(text)
            assert message.raw[8:].startswith(text)
        os.kill(child, signal.SIGKILL)

    return verify


main(setup)
