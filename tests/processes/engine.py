"""An HTTP service of two processes that use the GPU: a server, and its engine, whose memory the server has by CUDA IPC.

`engine.py [MEGABYTES]`: `/` has the engine step its numbers, and answers with how often that was done, the hash of the numbers as
the server sees them, and a number that the server counts on the GPU itself. Each process has so many megabytes beside that.
Prints a line when it listens.
"""

import json
import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "ipc"))
from driver import SIZE, Cuda, Handle

cuda, megabytes = Cuda(), int(sys.argv[1])


def numbers(begin):
    memory = cuda.allocate(4 * SIZE)
    cuda("cuMemsetD32_v2", memory, begin, SIZE)
    rest = cuda.allocate(max(megabytes, 1) << 20)
    cuda("cuMemsetD32_v2", rest, begin, max(megabytes, 1) << 18)
    cuda("cuCtxSynchronize")
    return memory


def engine(line):
    own = numbers(5)
    line.write(f"{cuda.memory_handle(own)}\n")
    line.flush()
    while line.readline():
        cuda.step(own, 3)
        cuda("cuStreamSynchronize", cuda.stream)
        line.write("done\n")
        line.flush()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self):
        self.server.line.write("step\n")
        self.server.line.flush()
        assert self.server.line.readline() == "done\n"
        cuda.step(self.server.own, 7)
        self.server.count += 1
        answer = {"count": self.server.count, "engine": cuda.hash(self.server.theirs), "server": cuda.hash(self.server.own)}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def server():
    here, there = socket.socketpair()
    subprocess.Popen([sys.executable, __file__, str(megabytes), str(there.fileno())], pass_fds=[there.fileno()])
    there.close()
    listening = HTTPServer(("127.0.0.1", 8000), Handler)
    listening.line, listening.count, listening.own = here.makefile("rw"), 0, numbers(9)
    listening.theirs = cuda.open_memory(Handle.of(listening.line.readline().strip()))
    os.write(1, b"listens\n")
    listening.serve_forever()


if len(sys.argv) > 2:
    engine(socket.socket(fileno=int(sys.argv[2])).makefile("rw"))
else:
    server()
