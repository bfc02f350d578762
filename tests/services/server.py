"""An HTTP service that counts on the GPU. `server.py TAG [PORT [MEGABYTES]]`; prints a line when it listens.

/ counts, and says whose answer it is; /grow?MEGABYTES takes GPU memory; /ready?FILE succeeds once there is FILE; /hold?NAME makes the file NAME.held and answers once there is NAME.go; /events does so
between two events; /echo gives back what comes while it comes; /upgrade leaves HTTP and echoes; /end ends the program in the
middle of an answer, /crash before one, /close closes the connection in place of one.
"""

import ctypes
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry bump(.param .u64 number)
{
  .reg .u64 %address;
  .reg .u32 %number;
  ld.param.u64 %address, [number];
  cvta.to.global.u64 %address, %address;
  ld.global.u32 %number, [%address];
  add.u32 %number, %number, 1;
  st.global.u32 [%address], %number;
  ret;
}
\0"""

cuda = ctypes.CDLL("libcuda.so.1")
device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
number, seen, turn = ctypes.c_uint64(), ctypes.c_uint32(), threading.Lock()


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise RuntimeError(f"{name} failed: {code}")


call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ctypes.byref(module), PTX)
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"bump")
call("cuMemAlloc_v2", ctypes.byref(number), 4)
call("cuMemsetD32_v2", number, 0, 1)


def count():
    with turn:
        call("cuCtxSetCurrent", context)
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(number), ctypes.c_void_p))
        call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        call("cuMemcpyDtoH_v2", ctypes.byref(seen), number, 4)
        return seen.value


def take(megabytes):
    """So much GPU memory, all of it written to."""
    with turn:
        call("cuCtxSetCurrent", context)
        more = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(more), megabytes << 20)
        call("cuMemsetD32_v2", more, 1, megabytes << 18)


def hold(name):
    Path(f"{name}.held").touch()
    while not os.path.exists(f"{name}.go"):
        time.sleep(0.01)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is one write, unless it says else: who is killed has written all of it or nothing.
    wbufsize = -1
    disable_nagle_algorithm = True

    def say(self, body, status=200, spans=None):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if spans:
            self.send_header("Rekindle-Spans", spans)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def stream(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def piece(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def pieces(self):
        """The body, as it comes."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        left = int(self.headers.get("Content-Length", 0))
        while left:
            data = self.rfile.read1(min(left, 65536))
            left -= len(data)
            yield data

    def do_GET(self):
        path, _, name = self.path.partition("?")
        if path == "/":
            who = os.stat("/proc/self/ns/net").st_ino
            answer = {"count": count(), "tag": sys.argv[1], "instance": who, "headers": dict(self.headers), "path": self.path}
            self.say(json.dumps(answer).encode())
        elif path == "/grow":
            take(int(name))
            self.say(b"{}")
        elif path == "/hold":
            hold(name)
            self.say(b"held")
        elif path == "/events":
            self.stream("text/event-stream")
            self.piece(b"data: first\n\n")
            hold(name)
            self.piece(b"data: second\n\n")
            self.piece(b"")
        elif path == "/upgrade":
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", self.headers["Upgrade"])
            self.end_headers()
            self.wfile.flush()
            while data := self.rfile.readline():
                self.wfile.write(data.upper())
                self.wfile.flush()
            self.close_connection = True
        elif path == "/end":
            self.stream("text/plain")
            self.piece(b"part")
            os._exit(3)
        elif path == "/ready":
            self.say(b"{}", 200 if os.path.exists(name) else 503)
        elif path == "/spans":
            # What it tells of lies after the request had come.
            time.sleep(0.05)
            now = time.time_ns() // 1000
            spans = f"own;{now - 300};200;{'a' * 16};, part;{now - 250};100;{'b' * 16};{'a' * 16}, early;1;1;{'c' * 16};, nonsense"
            self.say(b"{}", spans=spans)
        elif path == "/crash":
            os._exit(3)
        elif path == "/close":
            self.close_connection = True
        else:
            self.say(b"{}", 404)

    do_HEAD = do_GET

    def do_POST(self):
        path, _, name = self.path.partition("?")
        if path == "/crash":
            os._exit(3)
        if path == "/hold":
            hold(name)
            os._exit(3)
        self.stream("application/octet-stream")
        for data in self.pieces():
            self.piece(data)
        self.piece(b"")

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


server = Server(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 8000), Handler)
count()
if len(sys.argv) > 3:
    take(int(sys.argv[3]))
print("listens", flush=True)
server.serve_forever()
