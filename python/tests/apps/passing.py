"""Functions that call others with arrays on the GPU."""

import os
import time
from pathlib import Path

import numpy
import rekindle
from numba import cuda
from numba.cuda.cudadrv.devicearray import DeviceNDArray

app = rekindle.App("passing")


@cuda.jit
def scale(numbers, factor, out):
    at = cuda.grid(1)
    if at < numbers.size:
        out[at] = factor * numbers[at]


def scaled(array, factor=2):
    array = cuda.as_cuda_array(array)
    out = cuda.device_array(array.size, array.dtype)
    scale[(array.size + 63) // 64, 64](array, factor, out)
    return out


def made(count):
    return cuda.to_device(numpy.arange(count, dtype="int32"))


def hold(mark):
    """Until whoever tests lets it go."""
    Path(f"{mark}.held").touch()
    while not Path(f"{mark}.go").exists():
        time.sleep(0.005)


class Both:
    @rekindle.enter()
    def compile(self):
        scaled(made(4)).copy_to_host()


class Taking(Both):
    @rekindle.method()
    def double(self, array):
        return scaled(array)

    @rekindle.method()
    def kinds(self, value, plain: numpy.ndarray, *more: "list[DeviceNDArray] | None", **named):
        assert isinstance(plain, numpy.ndarray), type(plain)
        names = [type(one).__name__ for one in (value["a"], value["b"][0], value["b"][1][0], *more[0], *named.values())]
        total = sum(one.copy_to_host().sum(dtype="int64") for one in (value["a"], value["b"][0], *more[0], *named.values()))
        return names, int(total + plain.sum(dtype="int64"))

    @rekindle.method()
    def both(self, array):
        return {"given": array, "made": [scaled(array), (made(3), "text")]}

    @rekindle.method()
    def fail(self, array):
        raise ValueError(type(array).__name__)

    @rekindle.method()
    def held(self, array, mark):
        hold(mark)
        return int(array.copy_to_host().sum(dtype="int64"))

    @rekindle.method()
    def half(self, count):
        return cuda.to_device(numpy.zeros(count, "float16"))

    @rekindle.method()
    def own(self, ref):
        return rekindle.get(ref)


@app.cls(gpu="emulated", max_containers=1, concurrency=4)
class Taker(Taking):
    pass


@app.cls(gpu="emulated", max_containers=1, retries=rekindle.Retries(3, initial_delay=0.05))
class Dying(Both):
    @rekindle.method()
    def double(self, array, mark):
        """The first instance ends with the call in its hands."""
        if not os.path.exists(mark):
            Path(mark).touch()
            os._exit(1)
        return scaled(array)


@app.cls(gpu="emulated", max_containers=1, timeout=0.5)
class Slow(Both):
    @rekindle.method()
    def sleep(self, array):
        time.sleep(1.5)


@app.cls(gpu="emulated", max_containers=1, concurrency=4)
class Caller(Both):
    @rekindle.method()
    def double(self, count, times=1, app="passing"):
        """What comes of it, and as what it came."""
        taker = rekindle.Cls.from_name(app, "Taker")()
        given = made(count)
        for _ in range(times):
            found = taker.double.remote(given)
            kind, host = type(found).__name__, found.copy_to_host()
            del found
        return kind, host

    @rekindle.method()
    def nested(self, count):
        value = {"a": made(count), "b": (made(count), [numpy.arange(3)])}
        return Taker().kinds.remote(value, made(count), [made(3)], c=made(count))

    @rekindle.method()
    def both(self, count):
        found = Taker().both.remote(made(count))
        given, (doubled, (small, text)) = found["given"], found["made"]
        return [type(one).__name__ for one in (given, doubled, small)], [one.copy_to_host() for one in (given, doubled, small)], text

    @rekindle.method()
    def fail(self, count):
        Taker().fail.remote(made(count))

    @rekindle.method()
    def slow(self, count):
        Slow().sleep.remote(made(count))

    @rekindle.method()
    def dying(self, count, mark):
        return Dying().double.remote(made(count), mark).copy_to_host()

    @rekindle.method()
    def held(self, count, mark):
        return Taker().held.remote(made(count), mark)

    @rekindle.method()
    def spawned(self, count, mark):
        call = Taker().held.spawn(made(count), mark)
        return call.get()

    @rekindle.method()
    def mapped(self, count, calls):
        return [one.copy_to_host() for one in Taker().double.map(made(count) for _ in range(calls))]

    @rekindle.method()
    async def awaited(self, count):
        return (await Taker().double.remote.aio(made(count))).copy_to_host()

    @rekindle.method()
    def strided(self, count):
        return Taker().double.remote(made(2 * count)[::2]).copy_to_host()
