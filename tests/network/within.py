"""Connections within one process, of sockets that do not share their ports: `within.py FILE FIRST`. It ends when FILE is there,
and closes the connecting (`near`) or the accepted ends (`far`) first."""

import socket
import sys
import time
from pathlib import Path

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
ends = []
for _ in range(3):
    near = socket.create_connection(listener.getsockname())
    ends.append((near, listener.accept()[0]))
print("ready", flush=True)
while not Path(sys.argv[1]).exists():
    for near, far in ends:
        near.sendall(b"x")
        assert far.recv(1) == b"x"
    time.sleep(0.02)
for near, far in ends:
    for end in (near, far) if sys.argv[2] == "near" else (far, near):
        end.close()
print("done", flush=True)
