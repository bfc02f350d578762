"""What the benchmark calls: an array on the GPU, handed on where it lies or as a value."""

import os
import time

import numpy
import rekindle
from rekindle import driver

app = rekindle.App("bench-handon")
OPTIONS = {"gpu": os.environ["BENCH_GPU"], "max_containers": 1, "share": False, "scaledown_window": 600}


def on_gpu(array):
    device = driver.enter_context()
    address = driver.allocate(array.nbytes)
    driver.copy_to_gpu(address, array.ctypes.data, array.nbytes)
    return rekindle.DeviceArray("bench", "uint8", array.shape, address, device)


def timed(work):
    start = time.perf_counter()
    value = work()
    return value, time.perf_counter() - start


@app.cls(**OPTIONS)
class Giver:
    @rekindle.method()
    def make(self, size):
        self.array = on_gpu(numpy.random.default_rng(size).integers(0, 256, size, "uint8"))

    @rekindle.method()
    def ref(self):
        """The reference, and seconds that putting took."""
        return timed(lambda: rekindle.put(self.array))

    @rekindle.method()
    def value(self):
        return self.array


@app.cls(**OPTIONS)
class Taker:
    @rekindle.method()
    def ref(self, ref):
        """Seconds that getting took."""
        array, seconds = timed(lambda: rekindle.get(ref))
        del array
        ref.drop()
        return seconds

    @rekindle.method()
    def value(self, array):
        return timed(lambda: on_gpu(array))[1]
