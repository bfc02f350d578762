"""A service in a network of its own: on port 8000 it first tells one connection's fate, and then answers each with its own.

Two of its sockets are connected to each other. `private.py` prints a line when it listens, one when the first connection
is there, and one with what became of that.
"""

import errno
import socket

listener = socket.create_server(("127.0.0.1", 8000))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
near.sendall(b"unread")
with socket.socket() as outside:
    outside.settimeout(60)
    code = outside.connect_ex(("192.0.2.1", 80))
print("outside", errno.errorcode[code], flush=True)
first, _ = listener.accept()
print("accepted", flush=True)
try:
    print("first", first.recv(100).decode(), flush=True)
except ConnectionError as error:
    print("first", type(error).__name__, flush=True)
far.sendall(far.recv(100).upper())
own = near.recv(100)
for number in range(10**9):
    with listener.accept()[0] as caller:
        caller.sendall(own + b" %d" % number)
