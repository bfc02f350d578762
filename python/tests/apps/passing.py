"""Functions that call others with arrays on the GPU."""

import contextlib
import os
import time
from concurrent.futures import Future
from pathlib import Path
from unittest import mock

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
    def sums(self, array, host, more):
        return [
            int(numpy.asarray(one.copy_to_host() if hasattr(one, "copy_to_host") else one).sum(dtype="int64")) for one in (array, host, *more["b"])
        ]

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
    def changed_after(self, count, app="passing", way="spawn"):
        """The call is carried out when all of its arrays are others."""
        taker = rekindle.Cls.from_name(app, "Taker")()
        own, small, host, more = made(count), made(10), numpy.arange(10), {"b": [numpy.arange(3)]}
        begun = []

        def begin(function):
            begun.append((function, Future()))
            return begun[-1][1]

        with mock.patch.object(rekindle.client, "begin", begin):
            if way == "spawn":
                call = taker.sums.spawn(own, host, more | {"b": [*more["b"], small]})
            else:
                results = taker.sums.map([own], [host], [more | {"b": [*more["b"], small]}], window=1)
                call = rekindle.both.begin(lambda: next(results))
                while not begun and not call.done():
                    time.sleep(0.01)
        for one in (own, small):
            one.copy_to_device(numpy.zeros(one.shape, one.dtype))
        host[:] = more["b"][0][:] = 0
        more["b"].clear()
        ((function, future),) = begun
        future.set_result(function())
        return call.get() if way == "spawn" else call.result()

    @rekindle.method()
    def unsendable(self, count):
        """What is put of a call that cannot be sent goes at once."""
        with contextlib.suppress(rekindle.SerializationError):
            Taker().sums.spawn(made(count), object())
            return "nothing was raised"
        return [type(one).__name__ for one in Taker().sums.map([made(count)], [object()], return_exceptions=True)]

    @rekindle.method()
    def called_off(self, count):
        with mock.patch.object(rekindle.client, "begin", lambda function: Future()):
            call = Taker().double.spawn(made(count))
            return call.future.cancel()

    @rekindle.method()
    def abandoned(self, count, mark, seconds):
        """Whoever tests ends this instance meanwhile."""
        rekindle.exchange.EXPIRY = seconds
        call = Taker().held.spawn(made(count), mark)
        hold(mark + "-caller")
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
