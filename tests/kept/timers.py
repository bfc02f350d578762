"""Sets of epoll that tell of timers, events and pipes, by every way of asking: the sets go on telling of them.

timers.py GO. Clocks do not go back. Prints `ready`, waits for the file, then prints `ok`, or what a set did not tell.
"""

import ctypes
import os
import select
import sys
import time

# Seconds. What bounds a hang.
PATIENCE = 120
libc = ctypes.CDLL(None, use_errno=True)


class Interval(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every", "every_ns", "after", "after_ns")]


def timer(clock, every=0.0, after=0.0, flags=0):
    made = libc.timerfd_create(clock, os.O_NONBLOCK)
    assert made >= 0
    spec = Interval(int(every), int(every % 1 * 1e9), int(after), int(after % 1 * 1e9))
    assert libc.timerfd_settime(made, flags, ctypes.byref(spec), None) == 0
    return made


def wait(told, poll, wanted, what):
    """Until the set has told of it. An edge is told of once, whoever was asked for then."""
    deadline = time.monotonic() + PATIENCE
    while wanted not in told:
        if time.monotonic() > deadline:
            print(f"{what} is not told of", flush=True)
            sys.exit(1)
        told.update(descriptor for descriptor, _ in poll.poll(1))
    told.discard(wanted)


def main():
    # Of monotonic and real time; every so often, once while the program is an image, and once it has been asked for.
    soon, late = 0.3, 86400.0
    once = time.monotonic() + soon
    level, edge, nested = select.epoll(), select.epoll(), select.epoll()
    ticking = timer(time.CLOCK_MONOTONIC, every=0.05, after=0.05)
    real = timer(time.CLOCK_REALTIME, every=0.05, after=0.05)
    passed = timer(time.CLOCK_MONOTONIC, after=once, flags=1)
    unset = timer(time.CLOCK_MONOTONIC, after=late)
    event = os.eventfd(0, os.EFD_NONBLOCK)
    read, write = os.pipe2(os.O_NONBLOCK)
    for one in (ticking, real, passed, unset, event, read):
        level.register(one, select.EPOLLIN)
        edge.register(one, select.EPOLLIN | select.EPOLLET)
    nested.register(level.fileno(), select.EPOLLIN)
    # A set knows a descriptor by the file; the one that it was asked for is closed.
    copied = timer(time.CLOCK_MONOTONIC, every=0.05, after=0.05)
    level.register(copied, select.EPOLLIN)
    moved = os.dup(copied)
    os.close(copied)
    print("ready", flush=True)
    # Real time first and, below, last: a pause in between is none that the other clock has run ahead by.
    began, begun = time.time(), time.monotonic()
    last = begun
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.005)
        assert time.monotonic() >= last, "the clock has gone back"
        last = time.monotonic()
    assert last - begun <= time.time() - began + 1, "the clock has run ahead"
    sets = ((level, "level", set()), (edge, "edge", set()))
    for poll, name, told in sets:
        for one, what in ((ticking, "a timer"), (real, "a timer of real time"), (passed, "a timer that has passed")):
            wait(told, poll, one, f"{what} ({name})")
            if one != passed:
                os.read(one, 8)
                told.discard(one)
                wait(told, poll, one, f"{what} that was read ({name})")
    wait(set(), level, copied, "a timer whose descriptor is another now")
    assert os.read(moved, 8)
    wait(set(), nested, level.fileno(), "a set in a set")
    assert libc.timerfd_settime(unset, 0, ctypes.byref(Interval(0, 0, 0, 1_000_000)), None) == 0
    os.eventfd_write(event, 1)
    os.write(write, b"x")
    for poll, name, told in sets:
        for one, what in ((unset, "a timer that was set anew"), (event, "an event"), (read, "a pipe")):
            wait(told, poll, one, f"{what} ({name})")
    print("ok", flush=True)


main()
