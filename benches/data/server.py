"""A store of one file: ranges of it over HTTP, as fast as the kernel sends them. `server.py FILE` prints its port."""

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILE = sys.argv[1]
SIZE = os.path.getsize(FILE)


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.head(200, SIZE)

    def do_GET(self):
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.head(206, last + 1 - first, ("Content-Range", f"bytes {first}-{last}/{SIZE}"))
        self.wfile.flush()
        with open(FILE, "rb") as file:
            while first <= last:
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, last + 1 - first)

    def head(self, status, length, *more):
        self.send_response(status)
        for name, value in (("Content-Length", str(length)), ("ETag", '"one"'), ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT"), *more):
            self.send_header(name, value)
        self.end_headers()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    print(server.server_address[1], flush=True)
    server.serve_forever()
