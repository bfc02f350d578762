"""A workload of benches/gpu behind HTTP: each request is one step, its answer the digest. `program.py NAME [PORT]`

Steps are done by the main thread, which has warmed up: libraries keep handles for each thread.
"""

import os
import queue
import sys
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

import running  # noqa: E402
import workloads  # noqa: E402

asked = queue.SimpleQueue()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self):
        done = Future()
        asked.put(done)
        answer = done.result().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


build, environment = workloads.WORKLOADS[sys.argv[1]]
os.environ.update(environment)
step = build()
for i in range(running.WARM_UP):
    running.to_bytes(step(i))
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 8000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("listens", flush=True)
while True:
    done = asked.get()
    try:
        done.set_result(running.digest(step(0)))
    except Exception as error:
        done.set_exception(error)
