"""Workflows: steps have each other's arrays on the GPU, and the caller has the last one's result or exception."""

import asyncio
import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import pytest
import rekindle as package
from conftest import APPS, Deployer, begun

APP = (
    f"import sys\nsys.path.insert(0, {str(APPS)!r})\n"
    + """
import numpy
from numba import cuda
from scaling import scaled

@app.cls(gpu="emulated", concurrency=2, max_containers=2)
class Maker:
    @rekindle.enter()
    def compile(self):
        scaled(numpy.zeros(4, "int32"), 1).copy_to_host()

    @rekindle.method()
    def make(self, count, start=0):
        return {"numbers": cuda.to_device(numpy.arange(start, start + count, dtype="int32")), "count": count}

    @rekindle.method()
    def double(self, made):
        return scaled(made["numbers"], 2)

    @rekindle.method()
    def several(self, counts):
        return [self.make(count) for count in counts]

@app.cls(gpu="emulated", concurrency=2, max_containers=1)
class Other:
    @rekindle.enter()
    def compile(self):
        scaled(numpy.zeros(4, "int32"), 1).copy_to_host()

    @rekindle.method()
    def triple(self, made):
        return scaled(made["numbers"], 3)

    @rekindle.method()
    def join(self, doubled, tripled):
        kinds = [type(one).__name__ for one in (doubled, tripled)]
        return kinds, [cuda.to_device(one) if isinstance(one, numpy.ndarray) else one for one in (doubled, tripled)]

    @rekindle.method()
    def sums(self, arrays):
        return [int((one.copy_to_host() if hasattr(one, "copy_to_host") else one).sum(dtype="int64")) for one in arrays]

    @rekindle.method()
    def fail(self, made):
        raise ValueError(f"{type(made['numbers']).__name__} is not wanted")

@app.cls(gpu="emulated", max_containers=1, retries=rekindle.Retries(2, initial_delay=0.05))
class Again:
    @rekindle.enter()
    def compile(self):
        scaled(numpy.zeros(4, "int32"), 1).copy_to_host()

    @rekindle.method()
    def quadruple(self, made):
        return scaled(made["numbers"], 4)

    @rekindle.method()
    def sum(self, made, quadrupled):
        return int(sum(one.copy_to_host().sum(dtype="int64") for one in (made["numbers"], quadrupled)))

@app.function(gpu="emulated")
def add(kinds_and_arrays):
    kinds, (doubled, tripled) = kinds_and_arrays
    host = [one.copy_to_host() if hasattr(one, "copy_to_host") else one for one in (doubled, tripled)]
    return kinds, host[0] + host[1]
"""
)
# Of 4 bytes each: more than what goes by value, and less.
MANY, FEW = 400_000, 1000


@pytest.fixture(scope="module")
def deployer():
    with begun() as instance:
        one = Deployer(instance)
        one.app("flow", APP)
        yield one


@pytest.fixture
def parts():
    maker, other = (package.Cls.from_name("flow", name)() for name in ("Maker", "Other"))
    return maker, other, package.Function.from_name("flow", "add")


def whole(parts, **options):
    maker, other, add = parts
    flow = package.Workflow(**options)
    made = flow.step(maker.make)
    joined = flow.step(other.join, flow.step(maker.double, made), flow.step(other.triple, made))
    flow.step(add, joined)
    return flow


def left(deployer):
    return [row for row in deployer.rekindle.json("ps")["handed_on"] if row["arrays"]]


def test_large_arrays_stay_on_the_gpu_and_small_ones_go_by_value(deployer, parts):
    flow = whole(parts)
    for count, kinds in ((MANY, ["DeviceArray"] * 2), (FEW, ["ndarray"] * 2)):
        found, total = flow.remote(count, start=7)
        assert found == kinds
        assert numpy.array_equal(total, 5 * numpy.arange(7, 7 + count, dtype="int32"))
        deployer.rekindle.wait(lambda: not left(deployer), "all arrays to be used up")
    found, total = asyncio.run(whole(parts, least=1).remote.aio(FEW))
    assert found == ["DeviceArray"] * 2 and total[-1] == 5 * (FEW - 1)


def test_the_exception_of_a_step_names_it_and_nothing_after_it_is_called(deployer, parts):
    maker, other, add = parts
    flow = package.Workflow(expiry=2)
    made = flow.step(maker.make)
    wrong = flow.step(other.fail, made, name="the wrong one")
    flow.step(other.join, flow.step(maker.double, made), wrong)
    with pytest.raises(ValueError, match="DeviceArray is not wanted") as raised:
        flow.remote(MANY)
    assert [note for note in raised.value.__notes__ if "step" in note] == ["in the step 'the wrong one' of a workflow"]
    # What nobody uses any more expires.
    deployer.rekindle.wait(lambda: not left(deployer), "the arrays to expire")


def test_what_is_no_workflow_is_refused(parts):
    maker, other, _ = parts
    flow = package.Workflow()
    with pytest.raises(package.DeclarationError, match="whose result no other takes, and this one has none"):
        flow.remote()
    made = flow.step(maker.make)
    flow.step(maker.double, made)
    flow.step(other.triple, made)
    with pytest.raises(package.DeclarationError, match="this one has double, triple; add one that joins them"):
        flow.remote(1)
    with pytest.raises(package.DeclarationError, match="the steps make are of another workflow"):
        package.Workflow().step(maker.double, made)
    with pytest.raises(package.DeclarationError, match="is no function of an app"):
        package.Workflow().step(print)


def test_all_of_it_runs_in_this_program_too():
    app = package.App("here")

    @app.function()
    def doubled(number, plus=0):
        return 2 * number + plus

    @app.function()
    def pair(one, other):
        return one, other

    flow = package.Workflow()
    first = flow.step(doubled)
    flow.step(pair, flow.step(doubled, first), first)
    assert flow.local(5, plus=1) == (22, 11)


def test_each_element_of_a_list_is_a_call_here_too(deployer, parts):
    app = package.App("here")
    maker, other, _ = parts

    @app.function()
    def numbers(count):
        return list(range(count))

    @app.function()
    def plus(one, more=0):
        return one + more

    flow = package.Workflow()
    first = flow.step(numbers)
    flow.each(plus, first, flow.each(plus, first))
    assert flow.local(3) == [0, 2, 4] and flow.local(0) == []
    with pytest.raises(package.DeclarationError, match="comes after others"):
        flow.each(plus)
    odd = package.Workflow()
    odd.each(plus, odd.step(plus))
    with pytest.raises(package.SerializationError, match="'plus' is one call for each element, and what it comes after gave int"):
        odd.local(3)
    # Of functions that are deployed.
    for count in (FEW, MANY):
        flow = package.Workflow()
        made = flow.step(maker.several)
        flow.step(other.sums, flow.each(maker.double, made))
        assert flow.remote([count, 1]) == [2 * sum(range(count)), 0]
    assert flow.remote([]) == []
    wrong = package.Workflow(expiry=2)
    wrong.each(maker.double, wrong.step(maker.make))
    with pytest.raises(package.SerializationError, match="gave dict; return a list"):
        wrong.remote(FEW)
    deployer.rekindle.wait(lambda: not left(deployer), "all arrays to be used up")


class Lossy(BaseHTTPRequestHandler):
    """Brings requests to the service, and loses answers: those to `quadruple`, as many as the server has in `to_lose`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("quadruple"):
            self.server.calls += 1
            if self.server.calls > 1:
                self.server.before_again()
        connection = http.client.HTTPConnection(*self.server.to)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        self.close_connection = True
        if self.path.endswith("quadruple") and self.server.calls <= self.server.to_lose:
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def lossy(deployer, to_lose, before_again=lambda: None):
    """The class whose answers are lost on their way."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Lossy)
    server.to = "127.0.0.1", deployer.service("flow-Again")["port"]
    server.calls, server.to_lose, server.before_again = 0, to_lose, before_again
    threading.Thread(target=server.serve_forever).start()
    try:
        yield server, package.Cls.from_name("flow", "Again", url=f"http://127.0.0.1:{server.server_port}")()
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("to_lose", [0, 1, 2])
def test_a_step_whose_answer_is_lost_has_its_arrays_again_and_nobody_else_loses_them(deployer, parts, to_lose):
    with lossy(deployer, to_lose) as (server, again):
        flow = package.Workflow(expiry=10)
        made = flow.step(parts[0].make)
        flow.step(again.sum, made, flow.step(again.quadruple, made))
        assert flow.remote(MANY) == 5 * sum(range(MANY))
        assert server.calls == to_lose + 1
    with lossy(deployer, to_lose) as (server, again):
        flow = package.Workflow(expiry=10)
        flow.step(again.quadruple, flow.step(parts[0].make))
        assert numpy.array_equal(flow.remote(MANY), 4 * numpy.arange(MANY, dtype="int32"))
    deployer.rekindle.wait(lambda: not left(deployer), "all arrays to be used up")


def test_a_step_that_is_called_again_too_late_says_so(deployer, parts):
    is_gone = lambda: deployer.rekindle.wait(lambda: not left(deployer), "the array to go")
    with lossy(deployer, 1, before_again=is_gone) as (_, again):
        flow = package.Workflow(expiry=10)
        flow.step(again.quadruple, flow.step(parts[0].make))
        words = r"flow-Again\.quadruple was called again, for its answer was lost, and what it was given is not there any more: the array"
        with pytest.raises(package.RefNotFoundError, match=words):
            flow.remote(MANY)
