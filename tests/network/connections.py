"""Connections of every kind. Once the file GO is there, says what became of each, as a line of JSON.

connections.py GO PORT FULL-PORT LOG: PORT accepts, FULL-PORT has no room for another, LOG is a socket for datagrams.
"""

import asyncio
import errno
import json
import os
import socket
import sys
import threading

go, port, full, log_path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
result = {}


def named(receive):
    try:
        return receive().decode()
    except OSError as error:
        return type(error).__name__


def wait_in_receive(outside):
    result["blocking"] = named(lambda: outside.recv(1))


async def wait_in_loop():
    reader, _ = await asyncio.open_connection("127.0.0.1", port)
    outside.set()
    try:
        result["loop"] = (await reader.read(1)).decode()
    except OSError as error:
        result["loop"] = type(error).__name__


outside = threading.Event()
waiting = [
    threading.Thread(target=wait_in_receive, args=[socket.create_connection(("127.0.0.1", port))]),
    threading.Thread(target=asyncio.run, args=[wait_in_loop()]),
]
for thread in waiting:
    thread.start()
outside.wait()

listener = socket.create_server(("127.0.0.1", 0), backlog=5)
own = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
own.sendall(b"unread")

half_open = socket.socket()
half_open.setblocking(False)
half_open.connect_ex(("127.0.0.1", full))
udp = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
udp[0].bind(("127.0.0.1", 0))
udp[1].connect(udp[0].getsockname())
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.connect(log_path)

print(listener.getsockname()[1], flush=True)
go_on = threading.Event()
while not os.path.exists(go):
    go_on.wait(0.02)
for thread in waiting:
    thread.join()
result["half open"] = errno.errorcode.get(half_open.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "none")
result["own"] = named(lambda: accepted.recv(6))
accepted.sendall(b"answer")
result["own answer"] = named(lambda: own.recv(6))
udp[1].send(b"datagram")
result["udp"] = named(lambda: udp[0].recv(8))
log.send(b"logged")
listener.settimeout(0)
result["in backlog"] = named(lambda: listener.accept()[0].recv(7))
print(json.dumps(result), flush=True)
