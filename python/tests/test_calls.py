"""Calls of what is deployed: arguments, results, exceptions, several at once."""

import asyncio
import subprocess
import sys

import calls as declared
import numpy
import pytest
import rekindle
from conftest import APPS


@pytest.fixture
def counter(calls):
    return rekindle.Cls.from_name("calls", "Counter")()


def test_values_go_and_come_as_they_are(counter):
    values = [None, True, -3, 2**80, 1.5, "text", b"bytes", (1, (2, [3])), {"a": {1: {2, 3}}}, 1j]
    args, kwargs = counter.echo.remote(*values, key=values)
    assert list(args) == values and kwargs == {"key": values}
    assert [type(value) for value in args] == [type(value) for value in values]
    assert counter.add.remote(2) == 3 and counter.add.remote(2, b=5) == 7


def test_arrays_go_and_come_with_type_and_shape_and_can_be_written_to(counter):
    array = numpy.arange(60_000, dtype=numpy.float32).reshape(3, 20_000)[:, ::2]
    answer = counter.turned.remote(array)
    assert answer["array"].dtype == numpy.float32
    numpy.testing.assert_array_equal(answer["array"], (array + 1).T)
    assert type(answer["sum"]) is numpy.float32 and answer["sum"] == (array + 1).sum()
    answer["array"] += 1


def test_an_object_counts_on_the_gpu_and_enters_once_an_instance(counter):
    first = counter.count.remote()
    assert first > 10 and counter.count.remote() == first + 1
    entered, born = counter.who.remote()
    assert entered == ["image", "instance"]
    assert counter.who.remote()[1] == born


def test_an_exception_comes_as_its_own_type_with_its_traceback(counter):
    with pytest.raises(declared.OutOfPaperError, match="tray 3 has 0 sheets") as raised:
        counter.print.remote(3)
    assert raised.value.tray == 3
    (note,) = raised.value.__notes__
    assert 'calls.py", line' in note and "raise OutOfPaperError(tray, 0)" in note and "serving/" not in note
    with pytest.raises(TypeError, match="can only concatenate"):
        counter.add.remote("a", 1.5)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        counter.add.remote()
    with pytest.raises(rekindle.RemoteError, match="SystemExit: 3") as raised:
        counter.quit.remote(3)
    assert "raise SystemExit(code)" in raised.value.traceback
    assert counter.add.remote(1) == 2


def test_what_cannot_be_sent_is_named_on_either_side(counter):
    with pytest.raises(rekindle.SerializationError, match=r"builtins\.object"):
        counter.add.remote(object())
    with pytest.raises(rekindle.SerializationError, match=r"calls-Counter\.lock returned.*_thread"):
        counter.lock.remote()
    with pytest.raises(rekindle.NotFoundError, match="no method 'nothing'.*count"):
        counter.nothing.remote()
    with pytest.raises(rekindle.NotFoundError, match="'Nobody' of the app 'calls'.*rekindle deploy"):
        rekindle.Cls.from_name("calls", "Nobody")().count.remote()


def test_a_map_has_several_under_way_and_keeps_their_order(calls, counter):
    twice = rekindle.Function.from_name("calls", "twice")
    assert list(twice.map(range(50))) == [2 * number for number in range(50)]
    names = [calls.mark(name) for name in "abc"]
    results = counter.hold.map(names)
    # A generator begins with its first step.
    first = counter.hold.spawn(calls.mark("d"))
    ahead = asyncio.run(begin_and_release(calls, results))
    assert ahead == names
    with pytest.raises(TimeoutError):
        first.get(timeout=0.01)
    assert not first.done()
    calls.let_go("d")
    assert first.get() == calls.mark("d") and first.done()
    got = list(counter.print.map([1, 2], return_exceptions=True))
    assert [(type(error), error.tray) for error in got] == [(declared.OutOfPaperError, 1), (declared.OutOfPaperError, 2)]
    with pytest.raises(declared.OutOfPaperError):
        list(counter.print.map([1, 2]))


async def begin_and_release(calls, results):
    """All of them are in their instances' hands before one is let go, the last one first."""
    taken = asyncio.create_task(asyncio.to_thread(list, results))
    for name in "abc":
        await asyncio.to_thread(calls.held, name)
    for name in "cba":
        calls.let_go(name)
    return await taken


def test_an_event_loop_goes_on_while_it_calls(counter):
    async def all():
        sums = await asyncio.gather(*(counter.add.remote.aio(number) for number in range(20)))
        mapped = [value async for value in counter.add.map.aio([1, 2], [3, 4])]
        spawned = counter.add.spawn(1)
        return sums, mapped, await spawned.get.aio()

    assert asyncio.run(all()) == ([number + 1 for number in range(20)], [4, 6], 2)


def test_the_app_s_own_file_is_a_caller_too(calls):
    said = subprocess.run([sys.executable, APPS / "calls.py"], check=True, capture_output=True, text=True).stdout
    assert said == "OutOfPaperError of __main__ caught: tray 7 has 0 sheets; local 4\n"


def test_what_is_declared_runs_here_too():
    assert declared.twice(3) == declared.twice.local(3) == 6
    with pytest.raises(AttributeError, match="no method 'restored'"):
        declared.Counter().restored  # noqa: B018
    with pytest.raises(TypeError, match="known by name"):
        rekindle.Function.from_name("calls", "twice").local(1)
