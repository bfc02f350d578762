"""Sends garbage to Unix sockets: `fuzz.py SEED ROUNDS SOCKET...`, then says `fuzzed`.

Random bytes, frames of any length, parts of frames, descriptors along with all of that, connections that say nothing,
and what is right in the admission protocol from somebody who then does not go on.
"""

import array
import contextlib
import json
import os
import random
import socket
import sys

MOST_DESCRIPTORS = 253


def frame(value, length=None):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return (len(body) if length is None else length).to_bytes(4, "little") + body


def bodies(random):
    """What is sent at once."""
    knock = {"Knock": {"version": 1}}
    yield random.randbytes(random.choice([1, 3, 4, 5, 64, 4096]))
    yield frame(random.randbytes(random.randrange(200)))
    yield frame(b"{" * 4000)
    yield frame(b"x" * 100, length=random.choice([0, 1, 5000, 1 << 20, (64 << 20) + 1, (1 << 32) - 1]))
    yield frame(knock)[: random.randrange(1, 10)]
    yield frame({"Knock": {"version": 2**32 - 1}})
    yield frame("Settled")
    yield frame({"request": "no-such"})
    yield b""


def connect(path, limit=0.2):
    """A connection that waits for nothing long, or for as long as it takes."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(limit)
    connection.connect(path)
    return connection


def send(connection, body, descriptors):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    # The other side may have had enough.
    with contextlib.suppress(OSError):
        connection.sendmsg([body or b"\0"], rights if descriptors else [])


def attack(random, path):
    """One connection, or a storm of them; closed in the end, answered or not."""
    connections = [connect(path) for _ in range(random.choice([1, 1, 1, 1, 20]))]
    memory = os.memfd_create("garbage")
    left, right = socket.socketpair()
    for connection in connections:
        for body in random.sample(list(bodies(random)), random.randrange(1, 3)):
            count = random.choice([0, 0, 1, 2, 128, 129, MOST_DESCRIPTORS])
            send(connection, body, random.choices([memory, left.fileno(), right.fileno()], k=count))
    if len(connections) == 1 and random.random() < 0.1:
        with contextlib.suppress(OSError):
            connections[0].recv(100)
    for connection in connections:
        connection.close()
    os.close(memory)
    left.close()
    right.close()


def admitted_and_gone(path):
    """Knocks as a client does, and lets the worker that it gets go, unused or after garbage."""
    for word in (b"", frame(b"garbage"), frame("Resumed"), frame({"Board": {"name": "../../etc/passwd"}})):
        connection = connect(path, None)
        connection.sendall(frame({"Knock": {"version": 1}}))
        _, rights, _, _ = connection.recvmsg(4, 1024)
        for _, _, data in rights:
            for descriptor in array.array("i", data[: len(data) // 4 * 4]):
                os.write(descriptor, word)
                os.close(descriptor)
        connection.close()


def main():
    seed, rounds, *paths = sys.argv[1:]
    source = random.Random(int(seed))
    for _ in range(int(rounds)):
        path = source.choice(paths)
        # A storm can fill the queue before the door.
        with contextlib.suppress(OSError):
            attack(source, path)
    for path in paths:
        if path.endswith("gate.sock"):
            admitted_and_gone(path)
    print("fuzzed", flush=True)


main()
