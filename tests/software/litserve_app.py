"""LitServe, which has its model in a process of its own: `litserve_app.py PORT`."""

import sys

import litserve
from counter import Counter


class Model(litserve.LitAPI):
    def setup(self, device):
        self.counter = Counter()

    def decode_request(self, request):
        return request

    def predict(self, request):
        return self.counter.next()

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    server = litserve.LitServer(Model(), accelerator="cpu", workers_per_device=1)
    server.run(port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
