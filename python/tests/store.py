"""A store of objects over HTTP that fails as it is told: what clouds say too, without their signatures."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

CONDITIONS = ("If-Match", "If-None-Match", "x-goog-if-generation-match")


class Store(ThreadingHTTPServer):
    """`with Store() as store: store.objects["/bucket/key"] = b"..."`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.objects = {}
        # Ranges that were asked for, by paths.
        self.asked = []
        # How often each was written, as Google counts it.
        self.generations = {}
        # On which conditions.
        self.conditions = []
        # Who has asked: what is before the signature, if there is one.
        self.clients = set()
        # What becomes of the next requests for contents: a status, "cut" or "nothing" of the body, one after the other.
        self.failures = []
        # What becomes of the next requests to write: a status, or "done" and then 503, one after the other.
        self.refusals = []
        self.turn = threading.Lock()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def failure(self):
        with self.turn:
            return self.failures.pop(0) if self.failures else None


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def parse_request(self):
        is_whole = super().parse_request()
        if is_whole:
            # A name's slashes may be escaped.
            self.path = unquote(self.path)
        return is_whole

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.turn:
            self.server.conditions += [name for name in CONDITIONS if name in self.headers]
            refusal = self.server.refusals.pop(0) if self.server.refusals else None
            present = self.server.objects.get(self.path)
            tag = present is not None and f'"{hashlib.md5(present).hexdigest()}"'
            is_wanted = self.headers.get("If-Match", tag) == tag and not (self.headers.get("If-None-Match") and present is not None)
            generation = str(self.server.generations.get(self.path, int(present is not None)))
            is_wanted = is_wanted and self.headers.get("x-goog-if-generation-match", generation) == generation
            status = refusal if isinstance(refusal, int) else 201 if is_wanted else 412
            if status == 201:
                self.server.objects[self.path] = body
                self.server.generations[self.path] = int(generation) + 1
        self.say(503 if refusal == "done" else status, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    def answer(self, with_body):
        body = self.server.objects.get(self.path)
        self.server.clients.add(self.headers.get("Authorization", "").split(":")[0])
        failure = self.server.failure() if with_body else None
        tag = f'"{hashlib.md5(body or b"").hexdigest()}"'
        if body is None or isinstance(failure, int):
            self.say(failure or 404, {})
        elif self.headers.get("If-Match", tag) != tag:
            self.say(412, {})
        else:
            self.give(body, tag, failure, with_body)

    def give(self, body, tag, failure, with_body):
        headers = {"ETag": tag, "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT", "Accept-Ranges": "bytes"}
        headers["x-goog-generation"] = str(self.server.generations.get(self.path, 1))
        status, part = 200, body
        if range_ := self.headers.get("Range"):
            first, last = map(int, range_.removeprefix("bytes=").split("-"))
            status, part = 206, body[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(body)}"
        if with_body:
            self.server.asked.append((self.path, range_))
        given = {"cut": len(part) // 2, "nothing": 0}.get(failure, len(part))
        self.say(status, headers, part, given if with_body else None)

    def say(self, status, headers, body=b"", given=0):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if given is not None:
            self.wfile.write(body[:given])
            self.close_connection = self.close_connection or given < len(body)
