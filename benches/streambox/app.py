"""Functions that the benchmark calls beside the workflows: they hand on, load, launch, and disturb each other.

As an app of Rekindle's, and in native programs (`program.py`), which call them without it. Times are by the realtime clock, for
those of several programs are compared; `begin` is when all of them are to begin.
"""

import os
import time

import device
import numpy
import rekindle

app = rekindle.App("bench-streambox")
OPTIONS = {"gpu": os.environ.get("EXAMPLES_GPU"), "share": "bench-streambox", "scaledown_window": 600, "timeout": 120, "max_containers": 64}
# Of so many instances each context has room for one more.
MANY = OPTIONS | {"variants": 8 if (OPTIONS["gpu"] or "").startswith("nvidia") else 1}
PIECE = 64 << 10


def words(count, seed=0):
    return numpy.random.default_rng(seed).integers(0, 1 << 32, count, "uint32")


def sleep_until(begin):
    time.sleep(max(0.0, begin - time.time()))


class Function:
    """What all of them have: a stream."""

    def open(self):
        self.stream = device.Stream()
        self.stream.launch("nothing", 1, 1)
        self.stream.spin(1)
        self.stream.total(self.stream.word.address, 1)


@app.cls(**OPTIONS)
class Giver(Function):
    @rekindle.enter()
    def load(self):
        self.open()

    @rekindle.method()
    def make(self, count):
        """So many words on the GPU; their sum."""
        host = words(count)
        self.array = device.Array(count)
        self.stream.fill(self.array, host)
        self.stream.wait()
        return int(host.sum(dtype="uint32"))

    @rekindle.method()
    def give(self):
        return self.array

    @rekindle.method()
    def put(self):
        """The reference, and the seconds that putting took."""
        start = time.perf_counter()
        ref = rekindle.put(self.array)
        return ref, time.perf_counter() - start


@app.cls(**OPTIONS)
class Taker(Function):
    @rekindle.enter()
    def load(self):
        self.open()

    @rekindle.method()
    def take(self, array):
        """The seconds until the array is on the GPU, and its sum."""
        start = time.perf_counter()
        if isinstance(array, numpy.ndarray):
            here = device.Array(array.size)
            self.stream.fill(here, array)
            self.stream.wait()
        else:
            here = array
        took = time.perf_counter() - start
        return took, self.stream.total(here.address, here.shape[0])

    @rekindle.method()
    def get(self, ref):
        start = time.perf_counter()
        array = rekindle.get(ref)
        took = time.perf_counter() - start
        total = self.stream.total(array.address, array.shape[0])
        ref.drop()
        return took, total


@app.cls(**MANY)
class Model(Function):
    """So many bytes on the GPU and on the host, as weights."""

    @rekindle.enter()
    def load(self):
        self.open()
        self.host = words(int(os.environ["BENCH_MODEL_BYTES"]) // 4)
        self.array = device.Array(self.host.size)
        self.expected = int(self.host.sum(dtype="uint32"))
        self.copy(0.0)

    def copy(self, begin):
        sleep_until(begin)
        self.stream.fill(self.array, self.host)
        return self.sum()

    def sum(self):
        right = self.stream.total(self.array.address, self.array.shape[0]) == self.expected
        return time.time(), right

    @rekindle.method()
    def reload(self, begin):
        """Copies it from the host's memory; when it was there, and whether it is right."""
        return self.copy(begin)

    @rekindle.method()
    def there(self, hold):
        """When all of it was there, and whether it is right; then keeps the instance for so many seconds."""
        found = self.sum()
        time.sleep(hold)
        return found


@app.cls(**MANY)
class Launcher(Function):
    @rekindle.enter()
    def load(self):
        self.open()

    @rekindle.method()
    def burst(self, count, begin):
        """Microseconds of each launch of an empty kernel, and of each one that is waited for."""
        sleep_until(begin)
        return {"launch": self.timed(count, lambda: None), "launch and wait": self.timed(count, self.stream.wait)}

    def timed(self, count, then):
        times = []
        for number in range(count):
            start = time.perf_counter_ns()
            self.stream.launch("nothing", 1, 1)
            then()
            times.append((time.perf_counter_ns() - start) // 100 / 10)
            if number % 50 == 49:
                self.stream.wait()
        self.stream.wait()
        return times


@app.cls(**OPTIONS)
class Quiet(Function):
    """Little requests, each of which copies, computes and copies back."""

    @rekindle.enter()
    def load(self):
        self.open()
        self.host = words(PIECE // 4)
        self.array = device.Array(self.host.size)
        self.ask(1, 0.0)

    @rekindle.method()
    def ask(self, count, pause):
        """Milliseconds of each, and whether all were right."""
        times, right, expected = [], True, int(self.host.sum(dtype="uint32"))
        for _ in range(count):
            start = time.perf_counter()
            self.stream.fill(self.array, self.host)
            right &= self.stream.total(self.array.address, self.array.shape[0]) == expected
            times.append((time.perf_counter() - start) * 1000)
            time.sleep(pause)
        return times, right


@app.cls(**MANY)
class Noisy(Function):
    """Copies and computes all the time."""

    @rekindle.enter()
    def load(self):
        self.open()
        self.host = words(int(os.environ["BENCH_NOISE_BYTES"]) // 4)
        self.array = device.Array(self.host.size)
        self.disturb(0.0, 1)

    @rekindle.method()
    def disturb(self, until, spins):
        """How often it did."""
        rounds = 0
        while not rounds or time.time() < until:
            self.stream.fill(self.array, self.host)
            self.stream.spin(spins)
            self.stream.wait()
            rounds += 1
        return rounds
