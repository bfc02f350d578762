"""Counts, in ways that a checkpoint must keep: threads, a forked child, a shared mapping, deleted files, locks.

It says its end's inode on a Unix socket whose other end is outside the sandbox, and then answers each line
with one line of JSON.
"""

import ctypes
import fcntl
import json
import mmap
import multiprocessing
import os
import select
import socket
import sys
import tempfile
import threading
import time

RUN = "/run/rekindle"


def count(state, name):
    while True:
        state[name] += 1
        time.sleep(0.002)


def child(pipe, semaphore, shared):
    steps = 0
    while True:
        steps += 1
        with semaphore:
            shared.value += 1
        if pipe.poll(0.002):
            pipe.recv()
            pipe.send(steps)


def main():
    state = {"a": 0, "b": 0}
    for name in state:
        threading.Thread(target=count, args=(state, name), daemon=True).start()
    ours, theirs = multiprocessing.Pipe()
    semaphore = multiprocessing.Semaphore(1)
    shared = multiprocessing.Value(ctypes.c_long, 0)
    worker = multiprocessing.Process(target=child, args=(theirs, semaphore, shared), daemon=True)
    worker.start()

    ring = open(f"{RUN}/ring-0", "r+b")
    ring = mmap.mmap(ring.fileno(), 8192)
    deleted = tempfile.TemporaryFile()
    deleted.write(b"kept" * 1000)
    deleted.flush()
    named = open("/dev/shm/named", "w+b")
    named.write(b"named")
    named.flush()
    fcntl.lockf(named, fcntl.LOCK_EX)
    named_map = mmap.mmap(named.fileno(), 5)
    memory = os.memfd_create("private")
    os.write(memory, b"memfd")
    epoll = select.epoll()
    event = os.eventfd(3)
    epoll.register(event, select.EPOLLIN)
    private = bytearray(os.urandom(1 << 20))
    check = hash(bytes(private))

    control = socket.socket(socket.AF_UNIX)
    control.connect(f"{RUN}/control.sock")
    print("started", os.getpid(), flush=True)
    lines = control.makefile("rw")
    lines.write(f"{os.fstat(control.fileno()).st_ino}\n")
    lines.flush()
    for line in lines:
        command = line.strip()
        if command == "exit":
            print("leaving", flush=True)
            os._exit(7)
        if command == "cork":
            corked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            corked.connect(("127.0.0.1", 9))
            corked.setsockopt(socket.IPPROTO_UDP, 1, 1)  # UDP_CORK: what is sent waits for more
            corked.send(b"never sent")
        if command == "uncork":
            corked.close()
        if command == "orphan":
            between = os.fork()
            if between == 0:
                if os.fork() == 0:
                    time.sleep(1000)
                os._exit(0)
            os.waitpid(between, 0)
        if command == "say":
            print("said", flush=True)
        ours.send(None)
        deleted.seek(0)
        ring[0] = (ring[0] + 1) % 256
        answer = dict(
            state,
            pid=os.getpid(),
            child=ours.recv(),
            shared=shared.value,
            ring=ring[0],
            ring_daemon=ring[4096],
            deleted=deleted.read() == b"kept" * 1000,
            named=bytes(named_map).decode(),
            memfd=os.pread(memory, 5, 0).decode(),
            events=len(epoll.poll(0)),
            private=hash(bytes(private)) == check,
            threads=threading.active_count(),
        )
        lines.write(json.dumps(answer) + "\n")
        lines.flush()
    sys.exit(3)


main()
