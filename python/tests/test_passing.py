"""Arrays on the GPU as arguments and results of functions that call each other: they stay there, and nothing of them is left."""

import contextlib
import json
import shutil
import sys
import time
import types

import numpy
import pytest
import rekindle as package
from conftest import APPS, begun
from harness import BINARIES
from nodes import Node
from rekindle import passing
from rekindle.codec import decode, encode
from rekindle.device_array import Contents, DeviceArray
from rekindle.serving.parameters import Parameters

# Bytes of an array of this many numbers, and of the memory that it lies in.
COUNT, BYTES, ROOM = 300_000, 1_200_000, 2 << 20
GIVEN = numpy.arange(COUNT, dtype="int32")
SMALL = 1000
# Of a request or an answer that has no array of that size in it.
LITTLE = 8192


class Passing(Node):
    def __init__(self, rekindle):
        super().__init__(rekindle)
        self.log = rekindle.root / "access.log"

    def deploy(self):
        self.deployer(APPS / "passing.py")
        return self.find("Caller")

    def find(self, name, app="passing"):
        return package.Cls.from_name(app, name)()

    def counts(self, owner="app:passing"):
        found = [row for row in self.rekindle.json("ps")["handed_on"] if row["owner"] == owner]
        return tuple(found[0][name] for name in ("arrays", "held", "gpu_bytes", "host_bytes")) if found else (0, 0, 0, 0)

    def is_empty(self):
        self.rekindle.wait(lambda: self.counts() == (0, 0, 0, 0), f"all arrays to be gone, of {self.counts()}")

    def sizes(self, service, calls):
        """Bytes of the requests and answers of the calls of a service since the last look: of so many."""

        def lines():
            found = [json.loads(line) for line in self.log.read_text().splitlines()]
            return [line for line in found if line["service"] == service and line["path"].startswith("/-/call/")]

        seen = getattr(self, "seen", {}).get(service, 0)
        self.rekindle.wait(lambda: len(lines()) >= seen + calls, "the lines")
        self.seen = getattr(self, "seen", {}) | {service: len(lines())}
        return [(line["bytes_in"], line["bytes_out"]) for line in lines()[seen:]]


@contextlib.contextmanager
def passing_with(tmp_path, **environment):
    settings = {"REKINDLE_COMMAND": str(BINARIES / "rekindle"), "REKINDLE_ACCESS_LOG": str(tmp_path / "access.log")}
    with begun(**settings, **environment) as rekindle:
        node = Passing(rekindle)
        node.log = tmp_path / "access.log"
        yield node


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with passing_with(tmp_path_factory.mktemp("passing")) as one:
        one.deploy()
        yield one


@pytest.fixture(autouse=True)
def since_now(request):
    """Calls of earlier tests do not count, whichever ran before this one."""
    if "node" in request.fixturenames:
        request.getfixturevalue("node").sizes("passing-Taker", 0)


def test_an_array_goes_to_a_function_and_comes_back_without_the_host(node):
    caller = node.find("Caller")
    kind, host = caller.double.remote(COUNT)
    assert kind == "DeviceArray" and numpy.array_equal(host, 2 * GIVEN)
    ((sent, answered),) = node.sizes("passing-Taker", 1)
    assert sent < LITTLE and answered < LITTLE
    node.is_empty()


def test_a_small_array_goes_by_its_bytes_and_lies_on_the_gpu_again(node):
    kind, host = node.find("Caller").double.remote(SMALL)
    assert kind == "DeviceArray" and numpy.array_equal(host, 2 * numpy.arange(SMALL, dtype="int32"))
    ((sent, answered),) = node.sizes("passing-Taker", 1)
    assert sent > 4 * SMALL and answered > 4 * SMALL
    assert node.counts() == (0, 0, 0, 0)


def test_arrays_within_values_are_what_the_parameters_say(node):
    caller = node.find("Caller")
    names, total = caller.nested.remote(COUNT)
    assert names == ["DeviceArray", "DeviceArray", "ndarray", "DeviceNDArray", "DeviceArray"]
    assert total == 4 * GIVEN.sum(dtype="int64") + 3
    names, arrays, text = caller.both.remote(COUNT)
    assert (names, text) == (["DeviceArray"] * 3, "text")
    assert all(numpy.array_equal(*two) for two in zip(arrays, (GIVEN, 2 * GIVEN, numpy.arange(3)), strict=True))
    assert all(sent < LITTLE and answered < LITTLE for sent, answered in node.sizes("passing-Taker", 2))
    node.is_empty()


def test_the_array_is_held_until_the_call_ends_and_mapped_by_whoever_has_it(node):
    caller = node.find("Caller")
    for method in (caller.held, caller.spawned):
        mark = node.deployer.mark(method.name)
        call = method.spawn(COUNT, mark)
        node.deployer.held(method.name)
        assert node.counts() == (1, 1, ROOM, 0)
        node.deployer.let_go(method.name)
        assert call.get() == GIVEN.sum(dtype="int64")
        node.is_empty()


# Of arrays of COUNT, 10, 3 and 10 numbers.
SUMS = [int(GIVEN.sum(dtype="int64")), 45, 3, 45]


@pytest.mark.parametrize("way", ["spawn", "map"])
def test_what_is_sent_is_what_the_arguments_were_when_the_call_was_begun(node, way):
    assert node.find("Caller").changed_after.remote(COUNT, way=way) == SUMS
    node.is_empty()


def test_a_call_that_cannot_be_sent_raises_at_once_and_leaves_nothing(node):
    assert node.find("Caller").unsendable.remote(COUNT) == ["SerializationError"]
    node.is_empty()
    with pytest.raises(package.SerializationError, match="builtins.object cannot be sent"):
        node.find("Taker").sums.spawn(object())


def test_a_call_that_is_called_off_before_it_is_carried_out_leaves_nothing(node):
    assert node.find("Caller").called_off.remote(COUNT)
    node.is_empty()


def test_arrays_of_a_call_whose_caller_was_killed_go_when_they_expire(node):
    mark = node.deployer.mark("abandoned")
    call = node.find("Caller").abandoned.spawn(COUNT, mark, 2.0)
    node.deployer.held("abandoned")
    node.deployer.held("abandoned-caller")
    assert node.counts() == (1, 1, ROOM, 0)
    (instance,) = node.deployer.service("passing-Caller")["instances"]
    node.rekindle("kill", instance["name"])
    with pytest.raises(package.InstanceLostError):
        call.get()
    # Whoever has it keeps it, however long that takes.
    time.sleep(2.5)
    assert node.counts()[1:] == (1, ROOM, 0)
    node.deployer.let_go("abandoned")
    node.is_empty()


def test_a_call_that_fails_or_takes_too_long_leaves_nothing(node):
    caller = node.find("Caller")
    with pytest.raises(ValueError, match="DeviceArray"):
        caller.fail.remote(COUNT)
    node.is_empty()
    with pytest.raises(package.FunctionTimeoutError):
        caller.slow.remote(COUNT)
    node.is_empty()


def test_a_call_that_is_made_again_finds_its_arrays(node):
    found = node.find("Caller").dying.remote(COUNT, node.deployer.mark("dead"))
    assert numpy.array_equal(found, 2 * GIVEN)
    assert all(sent < LITTLE for sent, _ in node.sizes("passing-Dying", 2))
    node.is_empty()


def test_many_calls_leave_nothing_behind(node):
    caller = node.find("Caller")
    assert numpy.array_equal(caller.double.remote(COUNT, times=200)[1], 2 * GIVEN)
    assert all(numpy.array_equal(one, 2 * GIVEN) for one in caller.mapped.remote(COUNT, 16))
    assert numpy.array_equal(caller.awaited.remote(COUNT), 2 * GIVEN)
    sizes = node.sizes("passing-Taker", 217)
    assert len(sizes) >= 217 and all(sent < LITTLE and answered < LITTLE for sent, answered in sizes[-217:])
    node.is_empty()


def test_what_is_no_whole_piece_of_memory_goes_by_its_bytes(node):
    assert numpy.array_equal(node.find("Caller").strided.remote(COUNT), 4 * GIVEN)
    node.is_empty()


def test_a_client_outside_of_a_sandbox_has_arrays_of_numpy_s(node):
    taker = node.find("Taker")
    found = taker.half.remote(COUNT)
    assert type(found) is numpy.ndarray and found.dtype == "float16" and found.shape == (COUNT,)


def test_a_program_that_shares_with_nobody_sends_bytes_and_has_arrays_on_its_gpu(node):
    source = f"""
import numpy, rekindle
from numba import cuda
taker = rekindle.Cls.from_name("passing", "Taker")()
own = cuda.to_device(numpy.arange({COUNT}, dtype="int32"))
for _ in range(2):
    found = taker.double.remote(own)
    assert type(found) is rekindle.DeviceArray and numpy.array_equal(cuda.as_cuda_array(found).copy_to_host(), 2 * numpy.arange({COUNT}))
print("ok")
"""
    node.rekindle.run("alone", sys.executable, "-c", source)
    assert node.rekindle.wait_end("alone") == ["ok"]
    assert all(sent > BYTES and answered > BYTES for sent, answered in node.sizes("passing-Taker", 2)[-2:])


def test_a_function_of_another_app_has_them_by_their_bytes(tmp_path):
    with passing_with(tmp_path) as node:
        caller = node.deploy()
        other = node.deployer.directory / "passing.py"
        shutil.copy(APPS / "passing.py", other)
        other.write_text(other.read_text().replace('rekindle.App("passing")', 'rekindle.App("others")'))
        node.deployer(other)
        kind, host = caller.double.remote(COUNT, times=2, app="others")
        assert kind == "DeviceArray" and numpy.array_equal(host, 2 * GIVEN)
        # The first time a reference was tried, and refused before anything was done.
        (refused, *carried_out) = node.sizes("others-Taker", 3)
        assert refused[0] < LITTLE and all(sent > BYTES and answered > BYTES for sent, answered in carried_out)
        assert node.counts() == node.counts("app:others") == (0, 0, 0, 0)
        # The bytes of one whose arrays are others by then are those that were put.
        assert caller.changed_after.remote(COUNT, "others") == SUMS
        assert node.counts() == node.counts("app:others") == (0, 0, 0, 0)
        # Within the app it stays by reference.
        assert caller.double.remote(COUNT)[0] == "DeviceArray" and node.sizes("passing-Taker", 1)[0][0] < LITTLE


@pytest.mark.parametrize("options", ['gpu="emulated", share=False', 'gpu=f"emulated:{int(is_taker)}"'])
def test_contexts_of_one_s_own_and_other_gpus_have_them_too(tmp_path, options):
    with passing_with(tmp_path) as node:
        file = node.deployer.directory / "passing.py"
        source = (APPS / "passing.py").read_text()
        for name in ("Taker", "Dying", "Slow", "Caller"):
            before, after = source.split(f"class {name}(")
            before, decorator, rest = before.rpartition("@app.cls(")
            own = options.replace("int(is_taker)", str(int(name == "Taker")))
            source = before + decorator + rest.replace('gpu="emulated"', own) + f"class {name}(" + after
        file.write_text(source)
        node.deployer(file)
        caller = node.find("Caller")
        assert numpy.array_equal(caller.double.remote(COUNT, times=3)[1], 2 * GIVEN)
        assert all(sent < LITTLE and answered < LITTLE for sent, answered in node.sizes("passing-Taker", 3))
        node.is_empty()


def test_what_has_no_room_is_said_as_that(tmp_path):
    with passing_with(tmp_path, REKINDLE_EXCHANGE_GPU="2M", REKINDLE_EXCHANGE_HOST="1M") as node:
        caller = node.deploy()
        with pytest.raises(package.RefMemoryError, match="--exchange-gpu"):
            caller.double.remote(1 << 20)
        node.is_empty()


def test_a_program_in_a_sandbox_starts_no_daemon(tmp_path):
    with passing_with(tmp_path) as node:
        command = f"import subprocess, sys; sys.exit(subprocess.run([{str(BINARIES / 'rekindle')!r}, '--socket', '/nowhere', 'ps']).returncode)"
        node.rekindle.run("asking", sys.executable, "-c", command)
        assert "a program in a sandbox starts none" in " ".join(node.rekindle.wait_end("asking"))


def test_contents_come_as_they_were_sent():
    data = numpy.arange(6, dtype="float32")
    sent = Contents("float32", (2, 3), memoryview(data).cast("B"))
    (got,) = decode(b"".join(encode([sent])))
    assert (got.dtype, got.shape) == ("float32", (2, 3)) and numpy.array_equal(got.array(), data.reshape(2, 3))
    brain = Contents("bfloat16", (3,), memoryview(bytes(6)))
    (got,) = decode(b"".join(encode([brain])))
    with pytest.raises(package.SerializationError, match="convert it to float32"):
        got.array()
    for wrong in (Contents("float32", (7,), sent.data), Contents("float99", (6,), sent.data)):
        with pytest.raises((package.SerializationError, KeyError)):
            decode(b"".join(encode([wrong])))


def test_annotations_name_what_arrays_become(monkeypatch):
    made = types.ModuleType("torch")
    made.Tensor = type("Tensor", (), {"__module__": "torch"})
    made.from_dlpack = lambda array: ("tensor", array)
    monkeypatch.setitem(sys.modules, "torch", made)
    array = DeviceArray("one", "int32", (4,), 0, 0)

    def method(plain, tensor, tensors, unclear, unknown):
        pass

    names = {"made": made, "numpy": numpy}
    function = types.FunctionType(method.__code__, names, "method", None, method.__closure__)
    function.__annotations__ = {
        "tensor": made.Tensor | None,
        "tensors": "dict[str, list[made.Tensor]]",
        "unclear": "made.Tensor | numpy.ndarray",
        "unknown": "nowhere.Type",
    }
    parameters = Parameters(function)
    args, kwargs = parameters.made([array, array, {"a": [array, 1]}, array], {"unknown": array})
    assert args == [array, ("tensor", array), {"a": [("tensor", array), 1]}, array, array] and kwargs == {}
    # The call itself says what is wrong with it.
    assert parameters.made([array], {}) == ([array], {})


def test_only_what_is_no_plain_value_is_looked_at():
    value = [1, "a", (2.5, None, {"b": [b"c", True]})]
    assert passing.changed(value, lambda one: pytest.fail(repr(one))) == value
