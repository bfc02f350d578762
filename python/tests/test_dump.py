"""Declared data that is written to: the store has what was in it when it was dumped, or the caller learns why not."""

import contextlib
import os
import signal
import threading

import numpy
import pytest
import rekindle as package
from conftest import begun
from nodes import Node
from store import Store
from test_stores import CREDENTIALS, cloud, s3

APP = """
import numpy
from numba import cuda

@cuda.jit
def add(numbers, value):
    at = cuda.grid(1)
    if at < numbers.size:
        numbers[at] += value

class Counter:
    @rekindle.enter()
    def compile(self):
        add[1, 32](cuda.to_device(numpy.zeros(4, "int32")), 0)
        cuda.synchronize()

    def add(self, value):
        numbers = cuda.as_cuda_array(self.numbers.load())
        add[(numbers.size + 255) // 256, 256](numbers, value)

    @rekindle.method()
    def step(self, value, more=0, mark=None):
        self.add(value)
        self.numbers.dump()
        if mark:
            Path(mark).touch()
        # What comes after is not in it.
        self.add(more)

    @rekindle.method()
    def twice(self, one, two):
        for value in (one, two):
            self.add(value)
            self.numbers.dump()

    @rekindle.method()
    def streams(self, value):
        stream = cuda.stream()
        numbers = cuda.as_cuda_array(self.numbers.load())
        add[(numbers.size + 255) // 256, 256, stream](numbers, value)
        self.numbers.dump(stream=int(stream.handle))
        add[(numbers.size + 255) // 256, 256, stream](numbers, value)

    @rekindle.method()
    def full(self, value):
        # All memory of the GPU but a little.
        held, size = [], cuda.current_context().get_memory_info().free
        self.add(value)
        # What is taken before the data has its memory is not there for that.
        cuda.synchronize()
        while size > 1 << 20:
            try:
                held.append(cuda.device_array(size, "uint8"))
            except cuda.cudadrv.driver.CudaAPIError:
                size //= 2
        self.numbers.dump()
        del held

    @rekindle.method()
    def caught(self, value):
        self.add(value)
        self.numbers.dump()
        try:
            self.numbers.finish()
        except rekindle.DataError as error:
            return type(error).__name__

    @rekindle.method()
    def array(self):
        return self.numbers.load()
"""
CLASS = """
@app.cls(gpu={gpu!r}, share={share!r}, concurrency=2, sleep_window=0, data={{"numbers": rekindle.Data({url!r}, dtype="int32", shape={count}, mode="rw", create={create})}})
class {name}(Counter):
    pass
"""
COUNT = 300_000


def filled(value, count=COUNT):
    return numpy.full(count, value, "int32")


class Counters(Node):
    def deploy(self, url, *, count=COUNT, create=False, share=False, names=("One",), gpu="emulated"):
        classes = "".join(CLASS.format(name=name, url=url, count=count, create=create, share=share, gpu=gpu) for name in names)
        self.deployer.app("counters", APP + classes)
        return [package.Cls.from_name("counters", name)() for name in names]

    def put(self, array):
        place = self.rekindle.root / "numbers"
        place.write_bytes(array.tobytes())
        return place, place.as_uri()


@contextlib.contextmanager
def counters(**environment):
    with begun(**{"REKINDLE_DATA_WRITE": "file:///,http://", **environment}) as rekindle:
        yield Counters(rekindle)


def read(place):
    return numpy.frombuffer(place.read_bytes(), "int32")


@pytest.mark.parametrize("share", [False, "tenant"])
def test_a_file_has_what_was_there_when_it_was_dumped(share):
    with counters() as node:
        place, url = node.put(filled(1))
        (one,) = node.deploy(url, share=share)
        one.step.remote(2, 100)
        assert numpy.array_equal(read(place), filled(3))
        assert numpy.array_equal(one.array.remote(), filled(103))
        one.twice.remote(1, 10)
        assert numpy.array_equal(read(place), filled(114))
        one.streams.remote(3)
        assert numpy.array_equal(read(place), filled(117))
        # What instances have is their own, through sleep and images too.
        node.rekindle("sleep", "counters-One-1", "--level", "disk") if share is False else None
        one.step.remote(1)
        assert numpy.array_equal(read(place), filled(121))
        assert not [one.name for one in place.parent.iterdir() if one.name.endswith(".rekindle-dump")]


def test_an_object_that_is_not_there_is_made():
    with Store() as store, counters() as node:
        one, two = node.deploy(f"{store.url}/new", create=True, names=("One", "Two"))
        one.step.remote(7)
        assert store.objects["/new"] == filled(7).tobytes()
        # The second has it, and goes on from there.
        two.step.remote(1)
        assert store.objects["/new"] == filled(8).tobytes()
        (without,) = node.deploy(f"{store.url}/none")
        with pytest.raises(package.DataNotFoundError):
            without.step.remote(1)


def test_an_object_of_another_size_is_neither_loaded_nor_replaced():
    with counters() as node:
        place, url = node.put(filled(1, COUNT + 1))
        (one,) = node.deploy(url, create=True)
        with pytest.raises(package.DataSizeError, match=f"^{url} has {4 * COUNT + 4} bytes, and {4 * COUNT} were declared by its shape and dtype"):
            one.step.remote(1)
        assert numpy.array_equal(read(place), filled(1, COUNT + 1))
        node.put(filled(1))
        one.step.remote(1)
        assert numpy.array_equal(read(place), filled(2))


@pytest.mark.parametrize(
    "url, made, replaced",
    [
        ("gs://bucket/models/numbers", "x-goog-if-generation-match", "x-goog-if-generation-match"),
        ("az://bucket/models/numbers", "If-None-Match", "If-Match"),
    ],
)
def test_an_object_of_another_cloud_is_made_and_replaced_as_long_as_it_is_the_same(url, made, replaced):
    with cloud(url, REKINDLE_DATA_WRITE=url) as (store, path, node):
        one, two = Counters.deploy(node, url, create=True, names=("One", "Two"))
        one.step.remote(1)
        assert store.objects[path] == filled(1).tobytes()
        two.step.remote(1)
        assert store.conditions == [made, replaced]
        # The last one is done, and not said to be.
        store.refusals = [503, "done"]
        two.step.remote(1)
        assert store.objects[path] == filled(3).tobytes()
        with pytest.raises(package.DataChangedError, match="became another object since it was loaded, and was left as it is"):
            one.step.remote(5)
        assert store.objects[path] == filled(3).tobytes()


def test_what_became_another_object_is_left_as_it_is():
    with Store() as store, counters() as node:
        store.objects["/numbers"] = filled(1).tobytes()
        one, two = node.deploy(f"{store.url}/numbers", names=("One", "Two"))
        assert numpy.array_equal(one.array.remote(), two.array.remote())
        one.step.remote(1)
        with pytest.raises(package.DataChangedError, match="became another object since it was loaded, and was left as it is"):
            two.step.remote(5)
        assert store.objects["/numbers"] == filled(2).tobytes()
        # It loads what is there now.
        two.step.remote(5)
        assert store.objects["/numbers"] == filled(7).tobytes()


def test_of_two_that_dump_at_once_one_is_told():
    with counters() as node:
        place, url = node.put(filled(0))
        both = node.deploy(url, names=("One", "Two"))
        for one in both:
            one.array.remote()
        outcomes = []

        def run(one, value):
            try:
                one.step.remote(value)
                outcomes.append(value)
            except package.DataChangedError:
                pass

        threads = [threading.Thread(target=run, args=pair) for pair in zip(both, (1, 2), strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (value,) = outcomes
        assert numpy.array_equal(read(place), filled(value))


def test_a_store_that_fails_for_a_while_is_asked_again():
    with Store() as store, counters() as node:
        store.objects["/numbers"] = filled(1).tobytes()
        (one,) = node.deploy(f"{store.url}/numbers")
        # The last one is done, and not said to be.
        store.refusals = [503, 500, "done"]
        one.step.remote(1)
        assert store.objects["/numbers"] == filled(2).tobytes() and not store.refusals
        one.step.remote(1)
        assert store.objects["/numbers"] == filled(3).tobytes()


def test_a_store_that_goes_on_failing_is_told_of_and_the_next_dump_is_asked_anew():
    with Store() as store, counters(REKINDLE_DATA_PATIENCE="1") as node:
        store.objects["/numbers"] = filled(1).tobytes()
        (one,) = node.deploy(f"{store.url}/numbers")
        one.array.remote()
        store.refusals = [503] * 200
        with pytest.raises(package.DataUnavailableError, match="cannot be written .* look whether its store works"):
            one.step.remote(1)
        assert one.caught.remote(1) == "DataUnavailableError"
        store.refusals = [403]
        with pytest.raises(package.DataAccessError, match="may not be written"):
            one.step.remote(1)
        assert store.objects["/numbers"] == filled(1).tobytes()
        store.refusals = []
        one.step.remote(1)
        assert store.objects["/numbers"] == filled(5).tobytes()


def test_a_memory_daemon_that_is_killed_in_a_dump_is_followed_by_another():
    with counters(REKINDLE_FAULT="data-put:hang") as node:
        place, url = node.put(filled(1))
        (one,) = node.deploy(url)
        call = one.step.spawn(1)
        node.rekindle.reached("data-put")
        (pid,) = node.memory_daemons()
        os.kill(pid, signal.SIGKILL)
        node.rekindle.let_go("data-put")
        call.get(timeout=60)
        assert numpy.array_equal(read(place), filled(2))


def test_an_instance_that_is_killed_in_a_dump_leaves_the_one_or_the_other():
    with counters(REKINDLE_FAULT="data-dump:hang") as node:
        place, url = node.put(filled(1))
        (one,) = node.deploy(url)
        call = one.step.spawn(1)
        node.rekindle.reached("data-dump")
        node.rekindle("kill", "counters-One-1")
        with pytest.raises(package.InstanceLostError):
            call.get(timeout=60)
        node.rekindle.let_go("data-dump")
        # Nothing of it had come to the store.
        assert numpy.array_equal(read(place), filled(1))
        one.step.remote(1)
        assert numpy.array_equal(read(place), filled(2))


def test_a_checkpoint_waits_for_a_dump_and_keeps_what_it_replaces():
    with counters(REKINDLE_FAULT="data-put:hang") as node:
        place, url = node.put(filled(1))
        (one,) = node.deploy(url)
        call = one.step.spawn(1)
        node.rekindle.reached("data-put")
        sleep = node.rekindle.begin("sleep", "counters-One-1", "--level", "host")
        node.rekindle.let_go("data-put")
        call.get(timeout=60)
        with contextlib.suppress(Exception):
            sleep.end()
        one.step.remote(1)
        assert numpy.array_equal(read(place), filled(3))


def test_a_gpu_that_is_full_dumps_by_the_host():
    with counters() as node:
        place, url = node.put(filled(1))
        (one,) = node.deploy(url, gpu="emulated:memory=64M")
        one.full.remote(4)
        assert numpy.array_equal(read(place), filled(5))


def test_programs_write_where_it_is_said_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "in").write_bytes(filled(1).tobytes())
    (tmp_path / "in").write_bytes(filled(1).tobytes())
    with counters(REKINDLE_DATA_FILES=str(tmp_path), REKINDLE_DATA_WRITE=(tmp_path / "out").as_uri()) as node:
        (one,) = node.deploy((tmp_path / "out/in").as_uri())
        one.step.remote(1)
        assert numpy.array_equal(read(tmp_path / "out/in"), filled(2))
        (one,) = node.deploy((tmp_path / "in").as_uri())
        with pytest.raises(package.DataAccessError, match="does not begin with .*/out, as rekindled demands"):
            one.step.remote(1)
        # A link leads nowhere else.
        (tmp_path / "out/link").symlink_to(tmp_path)
        (one,) = node.deploy((tmp_path / "out/link/new").as_uri(), create=True)
        with pytest.raises(package.DataAccessError, match="does not begin with"):
            one.step.remote(1)
    assert numpy.array_equal(read(tmp_path / "in"), filled(1)) and not (tmp_path / "new").exists()
    with counters(REKINDLE_DATA_WRITE=None) as node:
        _, url = node.put(filled(1))
        (one,) = node.deploy(url)
        with pytest.raises(package.DataAccessError, match="start it with --data-write"):
            one.step.remote(1)


@pytest.mark.parametrize("count", [COUNT, (65 << 20) // 4])
def test_objects_of_s3_are_replaced_in_one_piece_and_in_parts(tmp_path, count):
    settings = {"REKINDLE_DATA_WRITE": "s3://bucket/results", **CREDENTIALS}
    with s3(tmp_path / "log") as client, counters(AWS_ENDPOINT_URL=client.meta.endpoint_url, **settings) as node:
        held = lambda: client.get_object(Bucket="bucket", Key="results/numbers")["Body"].read()
        one, two = node.deploy("s3://bucket/results/numbers", count=count, create=True, names=("One", "Two"))
        one.step.remote(1)
        assert held() == filled(1, count).tobytes()
        two.step.remote(1)
        assert held() == filled(2, count).tobytes()
        with pytest.raises(package.DataChangedError):
            one.step.remote(5)
        assert held() == filled(2, count).tobytes()
        assert not client.list_multipart_uploads(Bucket="bucket").get("Uploads")
