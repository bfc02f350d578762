"""Declared data lies on a GPU once for all instances of an app, in memory that none of them can write to."""

import contextlib
import os
import signal
from pathlib import Path

import numpy
import pytest
import rekindle as package
from conftest import APPS, begun
from nodes import COUNT, Node, expected, numbers

APP = """
import sys
import numpy
sys.path.insert(0, {apps!r})
from summing import Summing

class Sum:
    @rekindle.enter()
    def begin(self):
        self.gpu = Summing()
        if {early}:
            self.numbers.load().wait()

    @rekindle.method()
    def total(self, mark=None):
        return self.gpu.few(self.numbers.load(), mark)

    @rekindle.method()
    def array(self):
        return self.numbers.load()

    @rekindle.method()
    def write(self):
        self.gpu.clear(self.numbers.load())

    @rekindle.method()
    def write_once(self, mark):
        # The first call writes, and so ends its context.
        if not Path(mark).exists():
            Path(mark).touch()
            self.write()
        return os.stat("/proc/self/ns/net").st_ino, self.total()

    @rekindle.method()
    def copy_over(self):
        return self.gpu.copy_over(self.numbers.load(), numpy.zeros(self.numbers.shape, "int32"))
"""
CLASS = """
@app.cls(gpu="emulated", share={share!r}, concurrency=2, sleep_window=0, retries={retries}, data={{"numbers": rekindle.Data({url!r}, dtype="int32", shape={count})}})
class {name}(Sum):
    pass
"""
# Of the memory that the numbers lie in.
ROOM = (COUNT * 4 + (2 << 20) - 1) >> 21 << 21


class Instances(Node):
    def deploy(self, url, *, app="sums", early=False, share=False, retries=0, names=("One", "Two")):
        classes = "".join(CLASS.format(name=name, url=url, count=COUNT, share=share, retries=retries) for name in names)
        self.deployer.app(app, APP.format(apps=str(APPS), early=early) + classes)
        return [package.Cls.from_name(app, name)() for name in names]

    def end(self, service):
        """Its instance, as a crash would."""
        (instance,) = self.deployer.service(service)["instances"]
        self.rekindle("kill", instance["name"])
        self.deployer.come_to(service)

    def stats(self, name):
        (row,) = self.rekindle.json("stats", "--no-stream", name)["sandboxes"]
        return row

    def shared(self, *names):
        """How much each instance has of memory that others have made."""
        return tuple(self.stats(name)["shared_bytes"] for name in names)


@contextlib.contextmanager
def instances_with(**environment):
    with begun(**environment) as rekindle:
        yield Instances(rekindle)


@pytest.fixture
def node():
    with instances_with() as one:
        yield one


@pytest.mark.parametrize("share", [False, None, "tenant"])
def test_the_second_instance_maps_what_the_first_has_loaded(node, share):
    array = numbers(1)
    _, url = node.file(array)
    one, two = node.deploy(url, share=share)
    assert one.total.remote() == expected(array)
    assert two.total.remote() == expected(array)
    assert numpy.array_equal(two.array.remote(), array)
    assert node.shared("sums-One-1", "sums-Two-1") == (0, ROOM)
    # Nothing but code and small arrays has come over the link.
    assert node.stats("sums-Two-1")["to_gpu_bytes"] < 1 << 20 < array.nbytes < node.stats("sums-One-1")["to_gpu_bytes"]
    # The memory outlives whoever has loaded it, and is there for the next.
    node.end("sums-One")
    assert numpy.array_equal(two.array.remote(), array)
    assert numpy.array_equal(one.array.remote(), array)
    assert node.fetched() == 1
    assert node.shared("sums-One-1", "sums-Two-1") == (ROOM, ROOM)
    # With its last user it goes; what the host has is still there.
    node.end("sums-One")
    node.end("sums-Two")
    assert one.total.remote() == expected(array)
    assert node.shared("sums-One-1") == (0,) and node.fetched() == 1


def test_an_object_that_changes_is_other_memory_and_who_has_the_old_one_keeps_it(node):
    old, new = numbers(2), numbers(3)
    place, url = node.file(old)
    one, two = node.deploy(url)
    assert one.total.remote() == expected(old)
    place.unlink()
    node.file(new)
    assert two.total.remote() == expected(new)
    assert numpy.array_equal(one.array.remote(), old) and numpy.array_equal(two.array.remote(), new)
    assert node.shared("sums-One-1", "sums-Two-1") == (0, 0)


def test_other_apps_have_memory_of_their_own(node):
    array = numbers(4)
    _, url = node.file(array)
    (one,) = node.deploy(url, names=("One",))
    (other,) = node.deploy(url, app="others", names=("One",))
    assert one.total.remote() == other.total.remote() == expected(array)
    assert node.shared("sums-One-1", "others-One-1") == (0, 0)
    assert node.fetched() == 1


@pytest.mark.parametrize("level", ["gpu", "host", "disk"])
def test_sleep_keeps_what_it_has_and_shares_it_again(node, level):
    array = numbers(5)
    _, url = node.file(array)
    one, two = node.deploy(url)
    assert one.total.remote() == two.total.remote() == expected(array)
    node.rekindle("sleep", "sums-Two-1", "--level", level)
    assert numpy.array_equal(two.array.remote(), array)
    # It has again what the other one has, or has kept it.
    assert node.shared("sums-One-1", "sums-Two-1") == (0, ROOM)
    node.rekindle("sleep", "sums-One-1", "--level", level)
    node.end("sums-Two")
    assert numpy.array_equal(one.array.remote(), array)
    assert two.total.remote() == expected(array)
    assert node.shared("sums-Two-1") == (ROOM,)


def test_instances_of_an_image_with_data_share_it(node):
    array = numbers(6)
    place, url = node.file(array)
    one, _ = node.deploy(url, early=True)
    assert one.total.remote() == expected(array)
    # Both images have it; the object itself is not needed any more.
    place.rename(place.with_suffix(".away"))
    _, two = [package.Cls.from_name("sums", name)() for name in ("One", "Two")]
    assert two.total.remote() == expected(array)
    assert node.shared("sums-One-1", "sums-Two-1") == (0, ROOM)
    node.end("sums-One")
    assert numpy.array_equal(one.array.remote(), array) and numpy.array_equal(two.array.remote(), array)
    assert node.shared("sums-One-1", "sums-Two-1") == (ROOM, ROOM)


def test_a_checkpoint_of_one_leaves_the_others_what_they_have(node):
    array = numbers(7)
    _, url = node.file(array)
    one, two = node.deploy(url)
    assert one.total.remote() == two.total.remote() == expected(array)
    for name in ("sums-One-1", "sums-Two-1"):
        node.rekindle("checkpoint", name, "--to", f"of-{name}", "--leave-running")
    assert one.total.remote() == two.total.remote() == expected(array)
    assert node.shared("sums-One-1", "sums-Two-1") == (0, ROOM)


@pytest.mark.parametrize("way", [(), ("--rounds", "2")])
def test_who_moves_to_another_gpu_has_it_there_with_those_that_are_there(node, way):
    array = numbers(11)
    _, url = node.file(array)
    one, two = node.deploy(url)
    assert one.total.remote() == two.total.remote() == expected(array)
    node.rekindle("migrate", "sums-Two-1", "--gpu", "emulated:1", *way)
    assert numpy.array_equal(two.array.remote(), array) and numpy.array_equal(one.array.remote(), array)
    assert node.shared("sums-One-1", "sums-Two-1") == (0, 0)
    node.rekindle("migrate", "sums-One-1", "--gpu", "emulated:1", *way)
    assert numpy.array_equal(two.array.remote(), array) and numpy.array_equal(one.array.remote(), array)
    assert node.shared("sums-One-1", "sums-Two-1") == (ROOM, 0)


@pytest.mark.parametrize("share", [False, "tenant"])
def test_who_writes_to_it_faults_and_the_others_have_it_as_it_was(node, share):
    array = numbers(8)
    _, url = node.file(array)
    one, two = node.deploy(url, share=share)
    assert one.total.remote() == two.total.remote() == expected(array)
    # A copy is refused, and the program goes on.
    assert two.copy_over.remote() == 1
    assert two.total.remote() == expected(array)
    if share:
        # A fault ends the context for all.
        return
    with pytest.raises(RuntimeError, match="700"):
        two.write.remote()
    # Whoever comes next finds another instance, with what the others have.
    assert two.total.remote() == expected(array)
    assert numpy.array_equal(one.array.remote(), array)
    assert "another one takes its place" in (node.rekindle.state / "daemon.log").read_text()


def test_a_call_whose_instance_has_faulted_is_made_again_at_another_one(node):
    array = numbers(12)
    _, url = node.file(array)
    (one,) = node.deploy(url, names=("One",), retries=1)
    first, total = one.write_once.remote(__file__)
    assert total == expected(array)
    second, total = one.write_once.remote(node.deployer.mark("wrote"))
    assert total == expected(array) and first != second
    node.deployer.come_to("sums-One", "running")
    served = node.deployer.service("sums-One")
    assert served["failed"] == 1 and served["problem"] is None
    assert one.total.remote() == expected(array)


def test_instances_are_admitted_as_if_each_had_its_data_once():
    # Three with all of it would need more than twice as much as they may have.
    limit = ROOM + (12 << 20)
    with instances_with(REKINDLE_SERVICE_MEMORY=str(limit)) as node:
        array = numbers(13)
        _, url = node.file(array)
        names = ("One", "Two", "Three")
        instances = node.deploy(url, names=names)
        for _ in range(2):
            assert [one.total.remote() for one in instances] == [expected(array)] * 3
        for name in names:
            node.deployer.come_to(f"sums-{name}", "running")
        used = lambda: node.rekindle.json("services")["memory"]["used_bytes"]["emulated"]
        shown = lambda: sum(node.deployer.service(f"sums-{name}")["gpu_bytes"] for name in names)
        assert ROOM < used() == shown() <= limit
        # The last one that has it counts it in full.
        for name in names[:2]:
            node.end(f"sums-{name}")
        node.rekindle.wait(lambda: ROOM < used() == shown() < limit, "what one instance has")


def test_what_is_mapped_outlives_the_memory_daemon(node):
    array = numbers(9)
    _, url = node.file(array)
    one, two = node.deploy(url)
    assert one.total.remote() == expected(array)
    (pid,) = node.memory_daemons()
    os.kill(pid, signal.SIGKILL)
    # The next one knows of no memory, and has the second instance fill some.
    assert two.total.remote() == one.total.remote() == expected(array)
    assert node.shared("sums-One-1", "sums-Two-1") == (0, 0)
    node.end("sums-One")
    assert one.total.remote() == expected(array)
    assert node.shared("sums-One-1", "sums-Two-1") == (ROOM, 0)


def test_one_that_is_killed_while_it_loads_leaves_that_to_the_next():
    with instances_with(REKINDLE_FAULT="data-copy:hang") as node:
        array = numbers(10)
        _, url = node.file(array)
        one, two = node.deploy(url)
        first, second = (Path(node.deployer.mark(name)) for name in ("first", "second"))
        lost = one.total.spawn(str(first))
        node.rekindle.reached("data-copy")
        call = two.total.spawn(str(second))
        node.rekindle.wait(second.exists, "the second launch")
        assert not call.done()
        node.rekindle("kill", "sums-One-1")
        with pytest.raises(package.InstanceLostError):
            lost.get(timeout=60)
        node.rekindle.let_go("data-copy")
        assert call.get(timeout=60) == expected(array)
        assert node.shared("sums-Two-1") == (0,)
