"""What the benchmark calls: data of one object, loaded by an instance's first call or not at all, and written by another."""

import os
import time

import rekindle
from rekindle import driver

app = rekindle.App("bench-data")
OPTIONS = {"gpu": os.environ["BENCH_GPU"], "max_containers": 1, "share": os.environ.get("BENCH_SHARE") or False}


def data():
    return {"blob": rekindle.Data(os.environ["BENCH_URL"], dtype="uint8", shape=int(os.environ["BENCH_BYTES"]))}


class Loaded:
    @rekindle.enter()
    def begin(self):
        """It has a context, as whoever uses the GPU has when the image is taken."""
        driver.enter_context()

    @rekindle.method()
    def nothing(self):
        return None

    @rekindle.method()
    def loaded(self):
        """Seconds until it is all in the GPU's memory."""
        start = time.perf_counter()
        self.blob.load().wait()
        return time.perf_counter() - start


@app.cls(data=data(), **OPTIONS)
class Model(Loaded):
    pass


# Further instances, each of an image of its own.
for number in range(int(os.environ["BENCH_FURTHER"])):
    globals()[f"Further{number}"] = app.cls(data=data(), **OPTIONS)(type(f"Further{number}", (Loaded,), {"__module__": __name__}))


@app.cls(
    data={"blob": rekindle.Data(os.environ["BENCH_URL"] + "-written", dtype="uint8", shape=int(os.environ["BENCH_BYTES"]), mode="rw", create=True)},
    **OPTIONS,
)
class Writer:
    @rekindle.method()
    def dumped(self):
        """Seconds until a dump has returned, and until the store has it."""
        self.blob.load().wait()
        start = time.perf_counter()
        self.blob.dump()
        returned = time.perf_counter() - start
        self.blob.finish()
        return returned, time.perf_counter() - start
