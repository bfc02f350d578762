"""Spans from a request to what its kernels wait for: as the collector has them, and as a function tells them."""

import json
import time
import urllib.request

import numpy
import pytest
import rekindle as package
from collector import collecting
from conftest import Deployer, begun
from harness import BINARIES
from nodes import COUNT, Node, expected, numbers
from rekindle import tracing

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"

APP = """
@app.cls(gpu="emulated", share=False, concurrency=1, max_containers=1)
class Outer:
    @rekindle.method()
    def call(self, seconds):
        time.sleep(seconds)
        return Inner().two.remote(seconds)

    @rekindle.method()
    async def later(self):
        import asyncio
        await asyncio.sleep(0.02)

    @rekindle.method()
    def fail(self):
        raise ValueError("no")

@app.cls(gpu="emulated", share=False, concurrency=2, max_containers=1)
class Inner:
    @rekindle.method()
    def two(self, seconds):
        time.sleep(seconds)
        return 2

    @rekindle.batched(max_batch_size=2, wait_ms=10000)
    def both(self, values):
        time.sleep(0.05)
        return values

@app.cls(gpu="emulated", share=False, max_containers=1, data={"state": rekindle.Data(URL, dtype="int32", shape=(1024,), mode="rw", create=True)})
class Dumping:
    @rekindle.method()
    def step(self):
        self.state.load().wait()
        self.state.dump()
"""
MILLISECOND = 1_000_000


class Tree:
    """The spans of the last request to a service."""

    def __init__(self, collector, rekindle, name, count=1):
        found = lambda: [one for one in collector.spans if one.name == name]
        rekindle.wait(lambda: len(found()) >= count, f"{count} spans {name}")
        self.collector, self.all = collector, found()
        self.top = self.all[-1]
        (self.program,) = self.below(self.top, "program")

    def below(self, span, name=None):
        return [one for one in self.collector.below(span) if name in (None, one.name)]

    def one(self, *path):
        """The span that is reached by these names from the program."""
        span = self.program
        for name in path:
            (span,) = self.below(span, name)
        return span

    def check(self):
        """Parts lie within what they are a part of, to the resolution of times. A request to another service is over for its gateway
        when its client may have had the answer for a while."""
        for span in [self.program, *self.collector.below(self.program)]:
            for part in [part for part in self.collector.below(span) if not part.name.startswith("POST ")]:
                assert span.begin - MILLISECOND <= part.begin <= part.end <= span.end + MILLISECOND, (span, part)


def took(span):
    return (span.end - span.begin) / 1e9


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    place = tmp_path_factory.mktemp("traced") / "state"
    settings = {"REKINDLE_COMMAND": str(BINARIES / "rekindle"), "REKINDLE_DATA_WRITE": f"file://{place.parent}/"}
    with collecting() as (collector, address), begun(OTEL_EXPORTER_OTLP_ENDPOINT=address, **settings) as rekindle:
        Deployer(rekindle).app("traced", APP.replace("URL", repr(place.as_uri())))
        yield rekindle, collector


def find(name):
    return package.Cls.from_name("traced", name)()


def test_a_request_has_spans_of_what_its_instance_does_and_of_what_that_calls(traced):
    rekindle, collector = traced
    assert find("Outer").call.remote(0.1) == 2
    outer, inner = (Tree(collector, rekindle, f"POST traced-{name}") for name in ("Outer", "Inner"))
    outer.check()
    assert [one.name for one in sorted(outer.below(outer.program), key=lambda one: one.begin)] == ["queue", "method"]
    assert took(outer.one("queue")) < 1
    method = outer.one("method")
    # The call that it makes is a part of it.
    assert (inner.top.trace, inner.top.parent) == (method.trace, method.id)
    assert took(method) >= 0.2 and 0.1 <= took(inner.one("method")) <= took(method) - 0.1
    assert method.begin < inner.top.begin and inner.one("method").end <= method.end + MILLISECOND
    assert [one.name for one in inner.below(inner.program)] == ["queue", "method"]
    # A coroutine has them too.
    find("Outer").later.remote()
    again = Tree(collector, rekindle, "POST traced-Outer", 2)
    assert [one.name for one in again.below(again.program)] == ["queue", "method"] and took(again.one("method")) >= 0.02
    with pytest.raises(ValueError, match="no"):
        find("Outer").fail.remote()
    failed = Tree(collector, rekindle, "POST traced-Outer", 3)
    assert failed.top.failed and failed.one("method")


def test_calls_of_a_batch_have_its_spans_each(traced):
    rekindle, collector = traced
    inner = find("Inner")
    before = sum(one.name == "POST traced-Inner" for one in collector.spans)
    assert [call.get() for call in (inner.both.spawn(1), inner.both.spawn(2))] == [1, 2]
    Tree(collector, rekindle, "POST traced-Inner", before + 2)
    ids = set()
    for top in [one for one in collector.spans if one.name == "POST traced-Inner"][-2:]:
        (program,) = [one for one in collector.below(top) if one.name == "program"]
        (batch,) = [one for one in collector.below(program) if one.name == "batch"]
        (method,) = collector.below(batch)
        assert method.name == "method" and took(batch) >= took(method) >= 0.05
        ids |= {batch.id, method.id}
    assert len(ids) == 4


def test_what_is_waited_for_and_dumped_is_told(traced):
    rekindle, collector = traced
    find("Dumping").step.remote()
    tree = Tree(collector, rekindle, "POST traced-Dumping")
    tree.check()
    assert tree.one("method", "data") and tree.one("dump").begin >= tree.one("method").end - MILLISECOND


def test_the_client_gets_no_spans_and_whoever_is_not_followed_tells_none(traced):
    rekindle, collector = traced
    row = next(row for row in rekindle.json("services")["services"] if row["name"] == "traced-Inner")
    for flag, count in (("1", 1), ("0", 0)):
        before = len(collector.spans)
        request = urllib.request.Request(f"http://127.0.0.1:{row['port']}/-/about", headers={"traceparent": PARENT + flag})
        with urllib.request.urlopen(request) as answer:
            assert "Rekindle-Spans" not in answer.headers
        if count:
            rekindle.wait(lambda: len(collector.spans) > before, "the span")
    find("Inner").two.remote(0)
    Tree(collector, rekindle, "POST traced-Inner")
    assert json.dumps([one.trace for one in collector.spans]).count(PARENT[3:35]) >= 1


def test_how_long_a_kernel_waited_for_declared_data_is_told():
    with collecting() as (collector, address), begun(OTEL_EXPORTER_OTLP_ENDPOINT=address, REKINDLE_FAULT="data-piece:hang") as rekindle:
        node = Node(rekindle)
        array = numbers(1)
        _, url = node.file(array)
        sums = node.deploy(url, COUNT)
        call = node.waiting(sums)
        time.sleep(0.5)
        rekindle.let_go("data-piece")
        assert call.get() == expected(array)
        tree = Tree(collector, rekindle, "POST sums-Sum")
        waited = tree.one("method", "wait for data")
        assert 0.5 <= took(waited) <= took(tree.one("method")) + 0.001
        # What finds it there waits for nothing.
        assert sums.total.remote() == expected(array)
        again = Tree(collector, rekindle, "POST sums-Sum", 2)
        assert again.one("method") and not again.below(again.one("method"), "wait for data")


def test_headers_name_the_span_that_a_call_is_made_in():
    assert tracing.headers() == {}
    trace = tracing.Trace.of([("traceparent", PARENT + "1"), ("tracestate", "a=1")])
    with tracing.following(trace):
        assert tracing.headers() == {"traceparent": PARENT + "1", "tracestate": "a=1"}
        with tracing.span("one"), tracing.span("two"):
            sent = tracing.headers()["traceparent"]
    one, two = trace.spans
    assert (one.within, two.within, sent) == ("", one.id, f"{PARENT[:36]}{two.id}-01")
    ((name, value),) = trace.told()
    assert (name, value) == ("Rekindle-Spans", f"one;{one.begin};{one.took};{one.id};, two;{two.begin};{two.took};{two.id};{one.id}")
    unfollowed = tracing.Trace.of([("traceparent", PARENT + "0")])
    with tracing.following(unfollowed), tracing.span("one"):
        assert tracing.headers()["traceparent"] == PARENT + "0"
    assert unfollowed.told() == []
    assert tracing.Trace.of([("traceparent", "nonsense")]) is None


def test_a_batch_is_a_part_of_each_of_its_requests():
    first, second = (tracing.Trace.of([("traceparent", PARENT + "1")]) for _ in range(2))
    trace = tracing.together([None, (first, "a" * 16), (second, "b" * 16)])
    with tracing.following(trace), tracing.span("method"), tracing.span("data"):
        assert numpy.size(trace.spans) == 2
    for one, within in ((first, "a" * 16), (second, "b" * 16)):
        one.adopt(trace.spans, within)
        method, data = one.spans
        assert (method.within, data.within) == (within, method.id)
    assert first.spans[0].id != second.spans[0].id and tracing.together([None]) is None
