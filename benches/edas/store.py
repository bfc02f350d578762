"""A store of objects on this machine: ranges over HTTP, all answers together no faster than its bandwidth.

    store.py DIRECTORY BITS_PER_SECOND     prints its port

The bandwidth is a token bucket, which all connections draw from before each megabyte that they send.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STEP = 1 << 20
# What may be sent at once after a pause, in seconds of the bandwidth.
BURST = 0.02


class Bucket:
    """`take` returns when so many bytes may be sent."""

    def __init__(self, rate):
        self.rate, self.turn, self.next, self.given = rate, threading.Lock(), time.monotonic(), 0

    def take(self, size):
        with self.turn:
            at = max(self.next, time.monotonic() - BURST)
            self.next = at + size / self.rate
            self.given += size
        if (wait := at - time.monotonic()) > 0:
            time.sleep(wait)


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        if file := self.found():
            self.head(200, file.stat().st_size)

    def do_GET(self):
        if self.path == "/-/given":
            body = json.dumps({"bytes": self.server.bucket.given}).encode()
            self.head(200, len(body))
            self.wfile.write(body)
        elif file := self.found():
            self.give(file)

    def found(self):
        file = self.server.directory / self.path.strip("/")
        if "/" not in self.path.strip("/") and file.is_file():
            return file
        self.head(404, 0)
        return None

    def give(self, file):
        size = file.stat().st_size
        first, last = 0, size - 1
        if wanted := self.headers.get("Range"):
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
            self.head(206, last + 1 - first, ("Content-Range", f"bytes {first}-{last}/{size}"))
        else:
            self.head(200, size)
        self.wfile.flush()
        with open(file, "rb") as opened:
            while first <= last:
                step = min(STEP, last + 1 - first)
                self.server.bucket.take(step)
                while step:
                    sent = os.sendfile(self.connection.fileno(), opened.fileno(), first, step)
                    first, step = first + sent, step - sent

    def head(self, status, length, *more):
        self.send_response(status)
        for name, value in (("Content-Length", str(length)), ("ETag", '"one"'), ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT"), *more):
            self.send_header(name, value)
        self.end_headers()


class Store(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        """A client that goes away is no error of the store's."""


if __name__ == "__main__":
    store = Store(("127.0.0.1", 0), Answer)
    store.directory, store.bucket = Path(sys.argv[1]), Bucket(float(sys.argv[2]) / 8)
    print(store.server_address[1], flush=True)
    store.serve_forever()
