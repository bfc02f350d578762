"""Declared data: it is in the GPU's memory when a kernel comes to it, once on the host, or the caller learns why not."""

import os
import signal
from pathlib import Path

import numpy
import pytest
import rekindle as package
from nodes import COUNT, expected, node_with, numbers


@pytest.fixture
def node():
    with node_with() as one:
        yield one


def test_a_kernel_finds_declared_data_and_instances_share_what_was_fetched(node):
    array = numbers(1)
    place, url = node.file(array)
    sums = node.deploy(url)
    assert sums.total.remote() == expected(array)
    assert numpy.array_equal(sums.array.remote(), array)
    assert node.fetched() == 1
    node.end_instance()
    assert sums.total.remote() == expected(array)
    assert node.fetched() == 1
    # Another version is another object.
    node.end_instance()
    array = numbers(2)
    place.unlink()
    node.file(array)
    assert sums.total.remote() == expected(array)
    assert node.fetched() == 2


def test_the_array_is_there_before_its_bytes_and_work_waits_for_them():
    with node_with(REKINDLE_FAULT="data-piece:hang") as node:
        array = numbers(3)
        _, url = node.file(array)
        call = node.waiting(node.deploy(url))
        assert not call.done() and not node.fetched()
        node.rekindle.let_go("data-piece")
        assert call.get(timeout=60) == expected(array)


def test_a_memory_daemon_that_is_killed_is_followed_by_another():
    with node_with(REKINDLE_FAULT="data-piece:hang") as node:
        array = numbers(4)
        _, url = node.file(array)
        sums = node.deploy(url)
        call = sums.total.spawn()
        node.rekindle.reached("data-piece")
        (pid,) = node.memory_daemons()
        os.kill(pid, signal.SIGKILL)
        node.rekindle.let_go("data-piece")
        assert call.get(timeout=60) == expected(array)
        assert pid not in node.memory_daemons()


def test_an_object_that_changes_while_it_is_read_is_not_mixed_up():
    with node_with(REKINDLE_FAULT="data-piece:hang") as node:
        place, url = node.file(numbers(5))
        sums = node.deploy(url)
        call = node.waiting(sums)
        # Another file of the same size takes its place.
        array = numbers(6)
        place.rename(place.with_suffix(".old"))
        node.file(array)
        node.rekindle.let_go("data-piece")
        with pytest.raises(package.DataChangedError, match="became another object while it was read"):
            call.get(timeout=60)
        assert sums.total.remote() == expected(array)


def test_who_asks_while_another_version_is_fetched_gets_the_one_that_is_there():
    with node_with(REKINDLE_FAULT="data-piece:hang") as node:
        array = numbers(8)
        place, url = node.file(array)
        sums = node.deploy(url)
        place.write_bytes(array.astype("int64").tobytes())
        with pytest.raises(package.DataSizeError, match=f"^{url} has {2 * array.nbytes} bytes"):
            sums.total.remote()
        # It is fetched all the same, for whoever else has declared it.
        node.rekindle.reached("data-piece")
        place.write_bytes(b"")
        with pytest.raises(package.DataSizeError, match="is empty"):
            sums.total.remote()
        node.file(array)
        node.rekindle.let_go("data-piece")
        assert sums.total.remote() == expected(array)


def test_what_cannot_be_had_is_said_in_a_sentence(node):
    array = numbers(7)
    place, url = node.file(array)
    sums = node.deploy(url)
    place.rename(place.with_suffix(".away"))
    with pytest.raises(package.DataNotFoundError, match=f"^{url} is not there .* put the object there"):
        sums.total.remote()
    # The instance goes on, and asks again.
    place.write_bytes(array.tobytes()[:-4])
    with pytest.raises(package.DataSizeError, match=f"has {array.nbytes - 4} bytes, and {array.nbytes} were declared"):
        sums.total.remote()
    # Numbers of another dtype: twice as wide.
    place.write_bytes(array.astype("int64").tobytes())
    with pytest.raises(
        package.DataSizeError, match=f"^{url} has {2 * array.nbytes} bytes, and {array.nbytes} were declared by its shape and dtype; "
    ):
        sums.total.remote()
    place.write_bytes(b"")
    with pytest.raises(package.DataSizeError, match="is empty"):
        sums.total.remote()
    place.unlink()
    place.mkdir()
    with pytest.raises(package.DataNotFoundError, match=f"^{url} is not there"):
        sums.total.remote()
    place.rmdir()
    place.write_bytes(array.tobytes())
    assert sums.total.remote() == expected(array)


def test_files_are_given_from_one_directory_alone(tmp_path):
    (tmp_path / "given").mkdir()
    outside, inside = tmp_path / "secret", tmp_path / "given/link"
    array = numbers(11)
    outside.write_bytes(array.tobytes())
    inside.symlink_to(outside)
    with node_with(REKINDLE_DATA_FILES=str(tmp_path / "given")) as node:
        for place in (outside, inside):
            with pytest.raises(package.DataAccessError, match="it does not lie in .*/given"):
                node.deploy(place.as_uri()).total.remote()
        inside.unlink()
        outside.rename(inside)
        assert node.deploy(inside.as_uri()).total.remote() == expected(array)
    with node_with(REKINDLE_DATA_FILES=None) as node, pytest.raises(package.DataAccessError, match="start it with --data-files"):
        node.deploy(inside.as_uri()).total.remote()


def test_data_beyond_the_gpu_or_what_the_host_may_hold_is_refused():
    with node_with(REKINDLE_DATA_MEMORY="1M") as node:
        array = numbers(8)
        _, url = node.file(array)
        sums = node.deploy(url)
        with pytest.raises(package.DataMemoryError, match="larger --data-memory"):
            sums.total.remote()
        sums = node.deploy(url, 1 << 40)
        with pytest.raises(package.DataMemoryError, match="^the GPU has no room for the 4398046511104 bytes"):
            sums.total.remote()


def test_what_was_used_least_recently_makes_room():
    with node_with(REKINDLE_DATA_MEMORY="40M") as node:
        urls, arrays = [], []
        for number in range(3):
            arrays.append(numbers(number))
            place = node.rekindle.root / f"numbers{number}"
            place.write_bytes(arrays[-1].tobytes())
            urls.append(place.as_uri())
        for number in (0, 1, 0, 2, 0, 1):
            sums = node.deploy(urls[number])
            assert sums.total.remote() == expected(arrays[number])
        words = [line.split("] ")[1] for line in node.log().splitlines() if "fetched" in line or "dropped" in line]
        seen = [(word.split()[0], int(word.split(": ")[0].split(",")[0][-1])) for word in words]
        assert seen == [("fetched", 0), ("fetched", 1), ("dropped", 1), ("fetched", 2), ("dropped", 2), ("fetched", 1)]


def test_a_checkpoint_has_what_was_loaded_and_waits_for_what_is_being_loaded(node):
    array = numbers(9)
    _, url = node.file(array)
    sums = node.deploy(url)
    assert sums.total.remote() == expected(array)
    for level in ("host", "disk"):
        node.rekindle("sleep", "sums-Sum-1", "--level", level)
        assert sums.total.remote() == expected(array)
    assert node.fetched() == 1


def test_instances_that_share_a_context_have_their_data(node):
    array = numbers(10)
    place, url = node.file(array)
    sums = node.deploy(url, share="tenant")
    assert sums.total.remote() == expected(array)
    node.end_instance()
    assert sums.total.remote() == expected(array)
    assert node.fetched() == 1
    place.rename(place.with_suffix(".away"))
    node.end_instance()
    with pytest.raises(package.DataNotFoundError):
        sums.total.remote()


def test_an_instance_that_ends_while_its_data_comes_leaves_its_context_to_others():
    with node_with(REKINDLE_FAULT="data-piece:hang") as node:
        array = numbers(11)
        _, url = node.file(array)
        sums = node.deploy(url, share="tenant")
        launched = Path(node.deployer.mark("launched"))
        call = sums.total.spawn(str(launched))
        node.rekindle.wait(launched.exists, "the launch")
        node.rekindle("kill", "sums-Sum-1")
        with pytest.raises(package.InstanceLostError):
            call.get(timeout=60)
        node.rekindle.let_go("data-piece")
        assert sums.total.remote() == expected(array)


def test_a_daemon_that_is_killed_is_followed_by_another():
    with node_with(REKINDLE_FAULT="data-piece:hang") as node:
        array = numbers(12)
        _, url = node.file(array)
        sums = node.deploy(url)
        mark = Path(node.deployer.mark("launched"))
        # The call itself is lost with the gateway.
        call = sums.total.spawn(str(mark))
        node.rekindle.wait(mark.exists, "the launch")
        node.end_daemon()
        node.rekindle.let_go("data-piece")
        assert node.deployer.service("sums-Sum")
        with pytest.raises(package.CallError):
            call.get(timeout=60)
        assert numpy.array_equal(sums.array.remote(), array)


def test_a_gpu_that_fails_meanwhile_is_told_of():
    with node_with(REKINDLE_FAULT="data-copy:fail") as node:
        _, url = node.file(numbers(13))
        with pytest.raises(package.DataGpuError, match="could not be copied to the GPU"):
            node.deploy(url).total.remote()


STREAMS = """
import numpy
from numba import cuda

@cuda.jit
def add(numbers, total):
    at = cuda.grid(1)
    if at < numbers.size:
        cuda.atomic.add(total, 0, numbers[at])

@app.cls(gpu="emulated", sleep_window=0, data={{"numbers": rekindle.Data({url!r}, dtype="int32", shape={count})}})
class Streams:
    @rekindle.enter()
    def compile(self):
        add[1, 32](cuda.to_device(numpy.zeros(4, "int32")), cuda.to_device(numpy.zeros(1, "int32")))
        cuda.synchronize()

    @rekindle.method()
    def work(self, mark):
        one, two, event = cuda.stream(), cuda.stream(), cuda.event()
        few = cuda.to_device(numpy.arange(64, dtype="int32"))
        totals = [cuda.to_device(numpy.zeros(1, "int32")) for _ in range(3)]
        cuda.synchronize()
        numbers = cuda.as_cuda_array(self.numbers.load())
        add[8, 32, one](numbers[:: numbers.size // 64], totals[0])
        event.record(one)
        # Another stream, which nothing leads to from the first, does its work.
        add[1, 64, two](few, totals[1])
        two.synchronize()
        Path(mark).touch()
        # From here on it comes after what waits.
        event.wait(two)
        add[1, 64, two](few, totals[1])
        add[1, 64, two](totals[0], totals[2])
        two.synchronize()
        return [int(total.copy_to_host()[0]) for total in totals]
"""


def test_streams_that_do_not_come_after_what_waits_go_on():
    with node_with(REKINDLE_FAULT="data-piece:hang") as node:
        array = numbers(14)
        _, url = node.file(array)
        node.deployer.app("streams", STREAMS.format(url=url, count=array.size))
        mark = Path(node.deployer.mark("done"))
        call = package.Cls.from_name("streams", "Streams")().work.spawn(str(mark))
        node.rekindle.wait(mark.exists, "the other stream's work")
        assert not call.done() and not node.fetched()
        node.rekindle.let_go("data-piece")
        few = sum(range(64))
        assert call.get(timeout=60) == [expected(array), 2 * few, expected(array)]


MANY = """
@app.cls(gpu="emulated", sleep_window=0, data={{f"part{{number}}": rekindle.Data(f"{url}-{{number}}", dtype="int32", shape={count}) for number in range({parts})}})
class Many:
    @rekindle.method()
    def all(self):
        return [getattr(self, f"part{{number}}").load() for number in range({parts})]
"""


def load_many(node, count):
    parts = 5
    arrays = [numbers(20 + number, count) for number in range(parts)]
    for number, array in enumerate(arrays):
        (node.rekindle.root / f"many-{number}").write_bytes(array.tobytes())
    url = (node.rekindle.root / "many").as_uri()
    node.deployer.app("many", MANY.format(url=url, count=count, parts=parts))
    found = package.Cls.from_name("many", "Many")().all.remote()
    assert all(numpy.array_equal(one, array) for one, array in zip(found, arrays, strict=True))


@pytest.mark.parametrize("count", [COUNT + 1001, 1001])
def test_many_objects_at_once_are_copied_from_where_they_are_or_through_blocks(node, count):
    load_many(node, count)


def test_where_the_driver_does_not_take_memory_that_is_only_read_data_comes_through_the_same_few_blocks():
    # None is a whole number of blocks, and together they are several times as many.
    with node_with(REKINDLE_FAULT="data-register") as node:
        load_many(node, COUNT + 1001)


def test_a_block_that_cannot_be_copied_fails_the_load():
    with node_with(REKINDLE_FAULT="data-register,data-copy") as node:
        _, url = node.file(numbers(30))
        with pytest.raises(package.DataGpuError, match=f"^{url} could not be copied to the GPU"):
            node.deploy(url).total.remote()


def test_a_copy_that_fails_fails_the_load_and_the_instance_goes_on():
    with node_with(REKINDLE_FAULT="data-copy") as node:
        _, url = node.file(numbers(8))
        sums = node.deploy(url)
        for _ in range(2):
            with pytest.raises(package.DataGpuError, match=f"^{url} could not be copied to the GPU"):
                sums.total.remote()
        (instance,) = node.deployer.service("sums-Sum")["instances"]
        assert instance["stage"] == "running"
