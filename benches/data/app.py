"""What the benchmark calls: data of one object, loaded by an instance's first call or not at all."""

import os
import time

import rekindle

app = rekindle.App("bench-data")
OPTIONS = {"gpu": os.environ["BENCH_GPU"], "max_containers": 1}


def data():
    return {"blob": rekindle.Data(os.environ["BENCH_URL"], dtype="uint8", shape=int(os.environ["BENCH_BYTES"]))}


@app.cls(data=data(), **OPTIONS)
class Model:
    @rekindle.method()
    def nothing(self):
        return None

    @rekindle.method()
    def loaded(self):
        """Seconds until it is all in the GPU's memory."""
        start = time.perf_counter()
        self.blob.load().wait()
        return time.perf_counter() - start
