"""Whoever waits in an event loop takes no thread from those that it waits for, however many wait at once."""

import subprocess
import sys

import pytest

# Functions whose service answers from this program, and more who wait at once than there are threads for calls.
PROGRAM = """
import asyncio, contextvars, functools, queue, sys, threading, time
import rekindle
from rekindle.both import THREADS
from rekindle.client import Prepared

MANY = 3 * THREADS
who = contextvars.ContextVar("who", default=None)

class Service:
    called = []
    may_go_on = threading.Event()

    def call(self, method, args, kwargs, patient=False, handing_on=None):
        time.sleep(0.01)
        if method == "held":
            self.may_go_on.wait()
        self.called.append((method, *args))
        if method == "fail":
            raise TimeoutError(f"{args[0]} is late")
        return (who.get(), *args) if method == "who" else sum(args)

    def prepare(self, *call):
        return Prepared(functools.partial(self.call, *call), lambda: None)

add, fail, held, who_asks = (rekindle.Function(Service(), name) for name in ("add", "fail", "held", "who"))

def joined():
    flow = rekindle.Workflow()
    first = flow.step(add)
    flow.step(add, flow.step(add, first), first)
    return flow

async def workflows():
    flow = joined()
    assert await asyncio.gather(*(flow.remote.aio(number) for number in range(MANY))) == [2 * number for number in range(MANY)]

async def maps():
    async def mapped(numbers, **options):
        return [value async for value in add.map.aio(numbers, **options)]

    assert await asyncio.gather(*(mapped(range(3), window=2) for _ in range(MANY))) == [[0, 1, 2]] * MANY

async def nested():
    # What is mapped is what other maps come to, and those wait themselves.
    async def mapped():
        return [value async for value in add.map.aio(add.map(add.map(range(3))))]

    assert await asyncio.gather(*(mapped() for _ in range(MANY))) == [[0, 1, 2]] * MANY

async def spawned():
    calls = [add.spawn(number) for number in range(MANY)]
    assert await asyncio.gather(*(call.get.aio() for call in calls)) == list(range(MANY))
    assert await calls[0].get.aio(0) == 0
    slow = held.spawn(1)
    try:
        await slow.get.aio(0.001)
    except TimeoutError:
        # It goes on.
        Service.may_go_on.set()
        assert await slow.get.aio(timeout=10) == 1
    else:
        raise AssertionError("it was there at once")

async def failing():
    flow = rekindle.Workflow()
    step = flow.step(fail)
    for _ in range(2000):
        step = flow.step(add, step)

    async def raises(wait, *notes):
        try:
            await wait()
        except TimeoutError as error:
            assert (str(error), getattr(error, "__notes__", [])) == ("7 is late", list(notes))
        else:
            raise AssertionError("nothing was raised")

    for remote in (flow.remote.aio, flow.remote):
        Service.called.clear()
        await raises(lambda: remote(7), "in the step 'fail' of a workflow")
        assert Service.called == [("fail", 7)]
    call = fail.spawn(7)
    for get in (call.get, call.get.aio):
        await raises(lambda: get(10))
    assert [str(error) async for error in fail.map.aio([7], return_exceptions=True)] == ["7 is late"]

async def going_on():
    # One that is cancelled goes on.
    Service.called.clear()
    try:
        await asyncio.wait_for(joined().remote.aio(1), 0.001)
    except TimeoutError:
        pass
    while len(Service.called) < 3:
        await asyncio.sleep(0.01)

async def contexts():
    flow = rekindle.Workflow()
    flow.step(who_asks, flow.step(add))
    who.set("me")
    assert await flow.remote.aio(1) == ("me", 1)
    assert [value async for value in who_asks.map.aio([1])] == [("me", 1)]

async def blocking():
    # An iterator that waits for another map does not keep the loop.
    things = queue.Queue()
    async def first():
        return [value async for value in add.map.aio(iter(things.get, None), window=1)]
    async def second():
        async for value in add.map.aio(range(3)):
            things.put(value)
        things.put(None)
    assert (await asyncio.gather(first(), second()))[0] == [0, 1, 2]

asyncio.run(globals()[sys.argv[1]]())
print("done")
"""


@pytest.mark.parametrize("case", ["workflows", "maps", "nested", "spawned", "failing", "going_on", "contexts", "blocking"])
def test_more_wait_at_once_than_there_are_threads(case):
    # One that hangs does not end by itself: its threads are waited for.
    done = subprocess.run([sys.executable, "-c", PROGRAM, case], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
