"""Has what nobody else can have at the same time: ports, sockets with paths and names, a locked file. Prints `ready`, and
then a line for each connection to its Unix socket.

server.py DIRECTORY [ports] [lock]
"""

import fcntl
import os
import socket
import sys
from pathlib import Path


def main():
    directory = Path(sys.argv[1])
    kept = []
    for address in ("127.0.0.1", "0.0.0.0") if "ports" in sys.argv[2:] else ():
        server = socket.socket()
        server.bind((address, 0))
        server.listen()
        # Connected to itself, from both ends.
        client = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
        kept += [server, client, server.accept()[0]]
    name = socket.socket(socket.AF_UNIX)
    name.bind(f"\0rekindle-test-{os.getpid()}-{directory}")
    name.listen()
    kept.append(name)
    locked = open(directory / "locked", "w")
    if "lock" in sys.argv[2:]:
        fcntl.flock(locked, fcntl.LOCK_EX)
    opened = open(directory / "opened-file")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(directory / "socket"))
    server.listen()
    kept += [locked, opened]
    print("ready", flush=True)
    while True:
        with server.accept()[0] as one:
            print("connected", flush=True)
            one.sendall(b"here")


main()
