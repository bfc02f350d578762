"""Spans of what is no function in Python: ASGI applications, and functions in C and Rust."""

import contextlib
import http.client
import threading
import time

import numpy
import pytest
import rekindle as package
from collector import collecting
from conftest import APPS, begun
from harness import BINARIES
from nodes import COUNT, Node, expected, numbers
from test_native import RUST, Native
from test_tracing import MILLISECOND, Tree, took

SITE = """
import asyncio, sys
sys.path.insert(0, {apps!r})
from summing import Summing

@app.cls(gpu="emulated", share=False, concurrency=4, max_containers=1, data={{"numbers": rekindle.Data({url!r}, dtype="int32", shape=({count},))}})
class Site:
    @rekindle.enter()
    def begin(self):
        self.gpu = Summing()

    @rekindle.asgi_app()
    def web(self):
        async def application(scope, receive, send):
            if scope["type"] != "http":
                raise RuntimeError("HTTP alone")
            await asyncio.sleep(0.1)
            path, _, mark = scope["path"].partition(":")
            if path == "/call":
                said = str(await Other().two.remote.aio(0.1)).encode()
            elif path == "/sum":
                said = str(await asyncio.to_thread(self.gpu.few, self.numbers.load(), mark or None)).encode()
            else:
                said = b"said"
            length = [] if path == "/stream" else [(b"content-length", b"%d" % (len(said) + 4 * (path == "/pieces")))]
            await send({{"type": "http.response.start", "status": 200, "headers": length}})
            if path in ("/stream", "/pieces"):
                for _ in range(4):
                    await asyncio.sleep(0.05)
                    await send({{"type": "http.response.body", "body": b".", "more_body": True}})
            await send({{"type": "http.response.body", "body": said}})
        return application

    @rekindle.method()
    def plain(self):
        return 1

@app.cls(gpu="emulated", share=False, max_containers=1)
class Other:
    @rekindle.method()
    def two(self, seconds):
        time.sleep(seconds)
        return 2
"""


class Site(Node):
    def __init__(self, rekindle, collector):
        super().__init__(rekindle)
        self.collector, self.count = collector, 0
        self.array = numbers(1)
        _, url = self.file(self.array)
        self.deployer.app("web", SITE.format(apps=str(APPS), url=url, count=COUNT))

    def get(self, path, **headers):
        """The body, and when its head had come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.deployer.service("web-Site")["port"])
        begin = time.monotonic()
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as answer:
            head = time.monotonic() - begin
            assert answer.status == 200 and "Rekindle-Spans" not in answer.headers
            return answer.read(), head

    def tree(self):
        self.count += 1
        return Tree(self.collector, self.rekindle, "GET web-Site", self.count)


@contextlib.contextmanager
def sites(**environment):
    settings = {"REKINDLE_COMMAND": str(BINARIES / "rekindle")} | environment
    with collecting() as (collector, address), begun(OTEL_EXPORTER_OTLP_ENDPOINT=address, **settings) as rekindle:
        yield Site(rekindle, collector)


@pytest.fixture(scope="module")
def site():
    with sites() as one:
        yield one


def names(tree, *path):
    return [one.name for one in tree.below(tree.one(*path))]


def test_an_application_s_answer_of_one_piece_has_all_of_its_time(site):
    assert site.get("/plain")[0] == b"said"
    tree = site.tree()
    tree.check()
    assert names(tree) == ["application"] and not names(tree, "application")
    assert took(tree.one("application")) >= 0.1
    # It ends with the answer.
    assert abs(tree.one("application").end - tree.program.end) <= MILLISECOND


def test_calls_that_an_application_makes_are_a_part_of_it(site):
    assert site.get("/call")[0] == b"2"
    tree = site.tree()
    other = Tree(site.collector, site.rekindle, "POST web-Other")
    application = tree.one("application")
    assert (other.top.trace, other.top.parent) == (application.trace, application.id)
    assert took(application) >= 0.1 + took(other.one("method"))


@pytest.mark.parametrize("path", ["/stream", "/pieces"])
def test_an_answer_that_comes_in_pieces_says_when_it_began_and_ends_when_it_is_through(site, path):
    said, head = site.get(path)
    assert said == b"....said"
    tree = site.tree()
    tree.check()
    application, first = tree.one("application"), tree.one("application", "first byte")
    assert took(application) >= 0.3 and application.attributes["rekindle.pieces"] == 5
    # What comes after its head the gateway counts, too, where nobody knew how much it would be.
    if path == "/stream":
        stream = tree.one("stream")
        assert (stream.attributes["rekindle.pieces"], stream.attributes["rekindle.bytes"]) == (5, 8)
        assert first.end - MILLISECOND <= stream.begin <= first.end + 150 * MILLISECOND and abs(stream.end - tree.program.end) <= MILLISECOND
    else:
        assert "stream" not in names(tree)
    # The head of a stream is not held back.
    assert 0.1 <= took(first) <= took(application) - (0.2 if path == "/stream" else 0.15) + 0.001
    assert head < took(application) - 0.1


def test_a_method_beside_an_application_has_its_own_spans_and_whoever_is_not_followed_none(site):
    assert package.Cls.from_name("web", "Site")().plain.remote() == 1
    tree = Tree(site.collector, site.rekindle, "POST web-Site")
    assert names(tree) == ["queue", "method"]
    before = len(site.collector.spans)
    site.get("/plain", traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")
    assert package.Cls.from_name("web", "Site")().plain.remote() == 1
    Tree(site.collector, site.rekindle, "POST web-Site", 2)
    assert not any(one.trace.startswith("4bf92f") for one in site.collector.spans[before:])


def test_what_kernels_of_an_application_wait_for_is_told():
    with sites(REKINDLE_FAULT="data-piece:hang") as site:
        launched = site.rekindle.root / "launched"
        said = []
        asks = threading.Thread(target=lambda: said.append(site.get(f"/sum:{launched}")[0]))
        asks.start()
        site.rekindle.reached("data-piece")
        site.rekindle.wait(launched.exists, "the launch")
        time.sleep(0.5)
        site.rekindle.let_go("data-piece")
        asks.join(timeout=60)
        assert said == [str(expected(site.array)).encode()]
        tree = site.tree()
        waited = tree.one("application", "wait for data")
        assert 0.5 <= took(waited) <= took(tree.one("application")) + 0.001


def function(name):
    return package.Function.from_name("native", name)


@contextlib.contextmanager
def natives(declared="", **environment):
    settings = {"REKINDLE_COMMAND": str(BINARIES / "rekindle")} | environment
    with collecting() as (collector, address), begun(OTEL_EXPORTER_OTLP_ENDPOINT=address, **settings) as rekindle:
        deployer = Native(rekindle)
        file = deployer.directory / "values.raw"
        file.write_bytes(numbers(1).tobytes())
        data = f'[data.values]\nurl = "file://{file}"\ndtype = "int32"\nshape = [{COUNT}]\n'
        deployer.native("native", [deployer.library("various"), RUST], data, timeout=2, concurrency=1)
        count = iter(range(1, 100))
        yield deployer, lambda: Tree(collector, rekindle, "POST native-runner", next(count))


def test_functions_in_c_and_rust_tell_of_their_queue_their_call_and_their_arrays():
    with natives() as (deployer, tree):
        x = numpy.arange(1000, dtype="float32")
        assert function("echo").remote(1) == 1
        first = tree()
        first.check()
        # An instance came for it.
        assert names(first) == ["queue", "method"] and names(first, "queue") == ["enter"]
        assert first.one("queue").end <= first.one("method").begin + MILLISECOND
        assert function("echo").remote(2) == 2
        assert names(tree(), "queue") == []
        ref = function("keep").remote(x)
        assert names(tree(), "method") == ["arrays"]
        assert function("total").remote(ref) == x.sum()
        assert names(tree(), "method") == ["arrays"]
        function("forget").remote(ref)
        tree()
        with pytest.raises(ValueError, match="no"):
            function("raises").remote("ValueError", "no")
        failed = tree()
        assert failed.top.failed and names(failed) == ["queue", "method"]
        # One whose time is over tells of it until then.
        with pytest.raises(package.FunctionTimeoutError):
            function("count").remote(deployer.mark("late"))
        late = tree()
        assert names(late) == ["queue", "method"] and took(late.one("method")) >= 1.9
        deployer.let_go("late")


def test_what_functions_in_c_wait_for_is_told_and_what_they_say_themselves():
    with natives(REKINDLE_FAULT="data-piece:hang") as (deployer, tree):
        for later, path in ((True, ("method", "wait for data")), (False, ("method", "data"))):
            call = function("loaded").spawn("values", later)
            if later:
                deployer.rekindle.reached("data-piece")
                time.sleep(0.5)
                deployer.rekindle.let_go("data-piece")
            assert numpy.array_equal(call.get(), numbers(1))
            told = tree()
            told.check()
            assert took(told.one(*path)) >= (0.4 if later else 0) and told.one("method", "copy")
