"""A collector of spans: takes OTLP over HTTP as protobuf, and keeps what it got."""

import contextlib
import http.server
import struct
import threading
from dataclasses import dataclass

KINDS = {1: "internal", 2: "server", 3: "client"}


@dataclass
class Span:
    trace: str
    id: str
    parent: str
    name: str
    kind: str
    begin: int
    end: int
    attributes: dict
    failed: bool
    # Why, if that is said.
    problem: str = ""


def fields(data):
    """Number and value of each field of a message, as https://protobuf.dev/programming-guides/encoding/ has it."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte, at = data[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        number, kind = divmod(varint(), 8)
        match kind:
            case 0:
                yield number, varint()
            case 1 | 5:
                size = 8 if kind == 1 else 4
                yield number, struct.unpack("<Q" if kind == 1 else "<I", data[at : at + size])[0]
                at += size
            case 2:
                size = varint()
                yield number, data[at : at + size]
                at += size
            case _:
                raise ValueError(f"field {number} is of kind {kind}")


def below(data, *path):
    """The messages that are reached by these fields."""
    if not path:
        return [data]
    return [found for number, inner in fields(data) if number == path[0] for found in below(inner, *path[1:])]


def attributes(messages):
    found = {}
    for message in messages:
        pair = dict(fields(message))
        ((kind, value),) = fields(pair[2])
        found[pair[1].decode()] = value.decode() if kind == 1 else value
    return found


def span(data):
    one = dict(fields(data))
    status = dict(fields(one.get(15, b"")))
    return Span(
        trace=one[1].hex(),
        id=one[2].hex(),
        parent=one.get(4, b"").hex(),
        name=one[5].decode(),
        kind=KINDS[one[6]],
        begin=one[7],
        end=one[8],
        attributes=attributes(below(data, 9)),
        failed=status.get(3) == 2,
        problem=status.get(2, b"").decode(),
    )


class Collector:
    def __init__(self):
        self.spans, self.resource, self.answer, self.asked = [], {}, 200, 0

    def take(self, path, kind, body):
        assert (path, kind) == ("/v1/traces", "application/x-protobuf"), (path, kind)
        self.asked += 1
        if self.answer == 200:
            self.resource |= attributes(below(body, 1, 1, 1))
            # At once: whoever finds a request's span finds those below it.
            self.spans += [span(data) for data in below(body, 1, 2, 2)]

    def below(self, parent):
        return [one for one in self.spans if one.parent == parent.id and one.trace == parent.trace]

    def one(self, **attributes):
        """The span of the request that has these."""
        found = [one for one in self.spans if one.kind == "server" and attributes.items() <= one.attributes.items()]
        return found[0] if found else None


@contextlib.contextmanager
def collecting():
    """A collector, and where it is."""
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(self.path, self.headers["Content-Type"], body)
            self.send_response(collector.answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield collector, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
