"""A store of one file: ranges of it over HTTP, as fast as the kernel sends them. A POST makes it a new version of the object. What is
put elsewhere is thrown away, and given as that file. `server.py FILE` prints its port."""

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILE = sys.argv[1]
SIZE = os.path.getsize(FILE)
# How many bytes were put, and how often, by paths.
PUT = {}
# Of the file: how often it was made a new version.
VERSIONS = []


def version():
    return f'"version {len(VERSIONS)}"'


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        if self.path == "/blob":
            self.head(200, SIZE, tag=version())
        elif self.path in PUT:
            size, count = PUT[self.path]
            self.head(200, size, tag=f'"{count}"')
        else:
            self.head(404, 0)

    def do_PUT(self):
        left = size = int(self.headers["Content-Length"])
        buffer = bytearray(1 << 20)
        while left:
            left -= self.rfile.readinto(memoryview(buffer)[: min(left, len(buffer))])
        PUT[self.path] = size, PUT.get(self.path, (0, 0))[1] + 1
        self.head(201, 0)

    def do_POST(self):
        VERSIONS.append(self.path)
        self.head(204, 0)

    def do_GET(self):
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        tag = version() if self.path == "/blob" else f'"{PUT[self.path][1]}"'
        self.head(206, last + 1 - first, ("Content-Range", f"bytes {first}-{last}/{SIZE}"), tag=tag)
        self.wfile.flush()
        with open(FILE, "rb") as file:
            while first <= last:
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, last + 1 - first)

    def head(self, status, length, *more, tag='""'):
        self.send_response(status)
        for name, value in (("Content-Length", str(length)), ("ETag", tag), ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT"), *more):
            self.send_header(name, value)
        self.end_headers()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    print(server.server_address[1], flush=True)
    server.serve_forever()
