"""A tree of processes and the kinds of descriptors that frameworks and their data loaders hold.

It talks as counter.py does; an answer says whether everything still works.
"""

import ctypes
import fcntl
import json
import mmap
import multiprocessing
import os
import select
import signal
import socket
import tempfile
import time

RUN = "/run/rekindle"
libc = ctypes.CDLL(None, use_errno=True)


def square(number):
    return number * number


def echo(sock):
    while data := sock.recv(100):
        sock.sendall(data.upper())


def main():
    pool = multiprocessing.Pool(2)
    ours, theirs = socket.socketpair()
    shared = mmap.mmap(-1, 4096)
    memory = os.memfd_create("shared")
    os.ftruncate(memory, 4096)
    memory_map = mmap.mmap(memory, 4096)
    child = os.fork()
    if child == 0:
        ours.close()
        signal.signal(signal.SIGUSR1, lambda *_: shared.__setitem__(1, shared[1] + 1))
        shared[0] = memory_map[0] = 7
        echo(theirs)
        os._exit(0)
    theirs.close()
    while not shared[0]:
        time.sleep(0.001)

    folder = tempfile.mkdtemp()
    watch = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(watch, folder.encode(), 0x100)
    locked = open(folder + "/locked", "w")
    fcntl.flock(locked, fcntl.LOCK_EX)
    os.set_blocking(watch, False)
    os.read(watch, 4096)
    linked = open(folder + "/first", "w+")
    linked.write("linked")
    linked.flush()
    os.link(folder + "/first", folder + "/second")
    os.unlink(folder + "/first")
    os.read(watch, 4096)
    read, write = os.pipe()
    os.write(write, b"in the pipe")
    os.mkfifo(folder + "/fifo")
    fifo = os.open(folder + "/fifo", os.O_RDWR)
    os.read(watch, 4096)
    poll = select.epoll()
    poll.register(ours, select.EPOLLIN)
    ticks = []
    signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)

    control = socket.socket(socket.AF_UNIX)
    control.connect(f"{RUN}/control.sock")
    lines = control.makefile("rw")
    lines.write(f"{os.fstat(control.fileno()).st_ino}\n")
    lines.flush()
    for number, _ in enumerate(lines):
        before = len(ticks)
        ours.sendall(b"hello")
        os.kill(child, signal.SIGUSR1)
        time.sleep(0.05)
        events = len(poll.poll(1))
        heard = ours.recv(100).decode()
        open(folder + f"/new{number}", "w").close()
        os.write(fifo, b"x")
        linked.seek(0)
        content = os.read(read, 100)
        os.write(write, content)
        other = open(folder + "/locked")
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = False
        except BlockingIOError:
            held = True
        answer = {
            "pool": pool.map(square, [1, 2, 3]),
            "child": heard,
            "events": events,
            "shared": [shared[0], memory_map[0]],
            "signals": shared[1] == number + 1,
            "inotify": len(os.read(watch, 4096)) > 0,
            "lock": held,
            "linked": linked.read(),
            "links": os.fstat(linked.fileno()).st_nlink,
            "pipe": content.decode(),
            "fifo": os.read(fifo, 10).decode(),
            "folder": folder,
            "timer": len(ticks) > before,
        }
        lines.write(json.dumps(answer) + "\n")
        lines.flush()


main()
