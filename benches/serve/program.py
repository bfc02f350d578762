"""A workload of benches/gpu behind HTTP: each request is one step, its answer the digest. `program.py NAME [PORT]`"""

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

import workloads  # noqa: E402

build, environment = workloads.WORKLOADS[sys.argv[1]]
os.environ.update(environment)
step, turn = build(), threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        with turn:
            answer = workloads.digest(step(0)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


workloads.digest(step(0))
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 8000), Handler)
print("listens", flush=True)
server.serve_forever()
