"""Functions and callers of different packages: what one does not understand is not sent to it, or refused before anything is done."""

import http.client

import numpy
import pytest
import rekindle as package
from conftest import APPS, begun
from harness import BINARIES
from rekindle import client
from rekindle.codec import CONTENT_TYPE, VERSION, decode, encode
from rekindle.device_array import Contents
from rekindle.passing import HandingOn
from test_native import Native

CALLER = """
import numpy
from numba import cuda

@app.cls(gpu="emulated", share=False, max_containers=1)
class Caller:
    @rekindle.method()
    def double(self, count, app, name="Earlier", times=1):
        called = rekindle.Cls.from_name(app, name)()
        for _ in range(times):
            found = called.double.remote(cuda.to_device(numpy.arange(count, dtype="int32")))
        return type(found).__name__, found

    @rekindle.method()
    def later(self, count):
        own = cuda.to_device(numpy.arange(count, dtype="int32"))
        return rekindle.Cls.from_name("earlier", "Earlier")().double.spawn(own).get()

    @rekindle.method()
    def fail(self, count):
        rekindle.Cls.from_name("earlier", "Earlier")().fail.remote(cuda.to_device(numpy.zeros(count)))

    @rekindle.method()
    def message(self, version):
        return rekindle.Function.from_name("native", "message").remote(version, cuda.to_device(numpy.arange(5, dtype="int32")))

@app.cls(gpu="emulated", share=False, max_containers=1)
class Taker:
    @rekindle.method()
    def double(self, array):
        return 2 * cuda.as_cuda_array(array).copy_to_host()
"""


@pytest.fixture(scope="module")
def node():
    with begun(REKINDLE_COMMAND=str(BINARIES / "rekindle")) as instance:
        deployer = Native(instance)
        deployer(APPS / "earlier.py")
        deployer.app("today", CALLER)
        yield deployer


def caller():
    return package.Cls.from_name("today", "Caller")()


def post(node, service, method, value, **headers):
    """An answer to a message as it stands here."""
    connection = http.client.HTTPConnection("127.0.0.1", node.service(service)["port"])
    connection.request("POST", f"/-/call/{method}", b"".join(encode(value)), {"Content-Type": CONTENT_TYPE, **headers})
    with connection.getresponse() as answer:
        return answer.status, answer.headers, answer.read()


def understood(node, service):
    return node.service(service)["source"].get("message")


def test_deployments_say_which_messages_are_understood(node):
    assert understood(node, "earlier-Earlier") == 1 and understood(node, "today-Taker") == VERSION
    node.native("told", [node.library("various")])
    assert understood(node, "told-runner") == VERSION


def test_a_function_of_an_earlier_package_has_arrays_of_numpy_s_as_it_had_them(node):
    for count in (300_000, 10):
        kind, found = caller().double.remote(count, "earlier", times=3)
        assert kind == "ndarray" and numpy.array_equal(found, 2 * numpy.arange(count))
    assert numpy.array_equal(caller().later.remote(300_000), 2 * numpy.arange(300_000))
    # What it raises is no matter of versions.
    with pytest.raises(TypeError, match="^the user's own"):
        caller().fail.remote(10)
    # A workflow asks for what it knows.
    flow = package.Workflow()
    earlier = package.Cls.from_name("earlier", "Earlier")()
    flow.step(earlier.double, flow.step(earlier.double))
    assert numpy.array_equal(flow.remote(numpy.arange(10)), 4 * numpy.arange(10))


def test_without_the_gateway_such_a_function_would_raise(node):
    """The stand-in is what it is to be: what it is not told of is an error in it."""
    sent = [[numpy.arange(3)], {}, HandingOn(0, 1, 60.0, held=True, place="here").said()]
    assert post(node, "earlier-Earlier", "double", sent)[1]["X-Rekindle"] == "raised"
    on_gpu = [[Contents("int32", (1,), memoryview(bytes(4)))], {}]
    assert post(node, "earlier-Earlier", "double", on_gpu)[1]["X-Rekindle"] == "misunderstood"
    for value in (sent, on_gpu):
        status, headers, said = post(node, "earlier-Earlier", "double", value, **{client.MESSAGE: "2"})
        assert (status, headers[client.MESSAGE], headers["X-Rekindle"]) == (409, "1", None)
        assert said == b'the service "earlier-Earlier" was deployed by a package that understands messages up to version 1, and the call needs version 2; deploy it again\n'  # fmt: skip


def test_a_function_deployed_again_has_arrays_of_the_gpu(node):
    kind, _ = caller().double.remote(10, "today", "Taker")
    assert kind == "ndarray"
    node.app("renewed", CALLER.replace("class Taker", "class Earlier"))
    (image,) = (row["source"]["image"] for row in node.rekindle.json("services")["services"] if row["name"] == "renewed-Earlier")
    # Without a word of what it understands an image has the first version, and what is said is of that image alone.
    node.rekindle("serve", image, "--name", "renewed-Earlier", "--message", 7)
    assert understood(node, "renewed-Earlier") == 7
    node.rekindle("serve", image, "--name", "renewed-Earlier", "--max", 2)
    assert understood(node, "renewed-Earlier") == 7
    other = node.service("today-Taker")["source"]["image"]
    node.rekindle("serve", other, "--name", "renewed-Earlier")
    assert understood(node, "renewed-Earlier") is None
    status, headers, _ = post(node, "renewed-Earlier", "double", [[], {}], **{client.MESSAGE: "2"})
    assert (status, headers[client.MESSAGE]) == (409, "1")


def test_a_caller_of_an_earlier_package_is_answered(node):
    status, headers, answer = post(node, "today-Taker", "double", [[Contents("int32", (2,), memoryview(bytes(8)))], {}])
    assert (status, headers["X-Rekindle"]) == (500, "raised")
    # What later packages add of its own accord is left out.
    for how in ([], [{"least": 0, "uses": 0, "expiry": 60.0}], [{"least": 0, "uses": 0, "expiry": 60.0, "again": True, "later": [1]}]):
        status, headers, answer = post(node, "today-Caller", "double", [[4, "today", "Taker"], {}, *how])
        assert (status, headers["X-Rekindle"]) == (200, "result") and numpy.array_equal(decode(answer)[1], 2 * numpy.arange(4))


@pytest.mark.parametrize("name", ["Taker", "runner"])
def test_what_needs_a_later_version_than_a_function_has_is_refused_by_it(node, name):
    if name == "runner":
        node.native("later", [node.library("various")])
    app, method = ("later", "echo") if name == "runner" else ("today", "double")
    service = f"{app}-{name}"
    node.rekindle("serve", node.service(service)["source"]["image"], "--name", service, "--message", 99)
    status, headers, said = post(node, service, method, [[1], {}], **{client.MESSAGE: "98"})
    assert (status, headers["X-Rekindle"], headers[client.MESSAGE]) == (409, "later", str(VERSION))
    assert f"{service} understands messages up to version {VERSION}, and the call needs version 98; deploy it again" in said.decode()


def test_a_call_that_cannot_be_of_an_earlier_version_says_what_to_do(monkeypatch, node):
    monkeypatch.setattr("rekindle.passing.FIRST", 3)
    with pytest.raises(package.CallError, match="Earlier.double was not called: .* up to version 1, and the call needs version 3; deploy it again"):
        package.Cls.from_name("earlier", "Earlier")().double.remote(1)


def test_libraries_have_messages_that_they_read(node):
    node.native("native", [node.library("various")])

    def arrays(version):
        found = []
        (_, array), _, *_ = decode(caller().message.remote(version), found)
        return type(array), found

    for version in (0, 1):
        kind, found = arrays(version)
        assert kind is numpy.ndarray and not found
    kind, found = arrays(2)
    assert kind is Contents and numpy.array_equal(found[0].array(), numpy.arange(5))
