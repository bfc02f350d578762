"""What ASGI applications tell once the heads of their answers have gone: of streams and WebSockets, and of how they fail."""

import asyncio
import contextlib
import http.client

import pytest
import rekindle as package
from collector import collecting
from conftest import Deployer, begun
from harness import BINARIES
from rekindle import tracing
from rekindle.serving.later import AT, MOST, LateTraces
from test_tracing import MILLISECOND, PARENT, Tree, took
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

APP = """
@app.cls(concurrency=4, max_containers=1)
class Site:
    @rekindle.asgi_app()
    def web(self):
        import asyncio

        async def stream(path, send):
            await asyncio.sleep(0.1)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(3):
                await asyncio.sleep(0.1)
                await send({"type": "http.response.body", "body": b"piece", "more_body": True})
            if path == "/call":
                await Other().two.remote.aio(1)
            if path == "/fail":
                raise ValueError("no ink: 50%, black; gone\\nor lost")
            await send({"type": "http.response.body"})
            if path == "/after":
                await asyncio.sleep(5)

        async def talk(receive, send):
            await receive()
            await send({"type": "websocket.accept", "headers": [(b"x-own", b"1")]})
            while (message := await receive())["type"] == "websocket.receive":
                await asyncio.sleep(0.05)
                if message["text"] == "fail":
                    raise KeyError("socket")
                await send({"type": "websocket.send", "text": message["text"]})

        async def application(scope, receive, send):
            if scope["type"] == "http":
                await stream(scope["path"], send)
            elif scope["type"] == "websocket":
                await talk(receive, send)
            else:
                raise RuntimeError("nothing else")
        return application

@app.cls(max_containers=1)
class Other:
    @rekindle.method()
    def two(self, number):
        return 2 * number

    @rekindle.method()
    def fail(self):
        raise ValueError("not this one")
"""


class Site:
    def __init__(self, rekindle, collector):
        self.rekindle, self.collector, self.count = rekindle, collector, 0
        self.deployer = Deployer(rekindle)
        self.deployer.app("web", APP)
        self.port = self.deployer.service("web-Site")["port"]

    def get(self, path, **headers):
        """What came of the body, and whether that was all."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            assert answer.status == 200 and not any(name.lower().startswith("rekindle") for name in answer.headers)
            try:
                return answer.read(), True
            except http.client.IncompleteRead as error:
                return error.partial, False

    def tree(self):
        self.count += 1
        return Tree(self.collector, self.rekindle, "GET web-Site", self.count)


@pytest.fixture(scope="module")
def site():
    settings = {"REKINDLE_COMMAND": str(BINARIES / "rekindle")}
    with collecting() as (collector, address), begun(OTEL_EXPORTER_OTLP_ENDPOINT=address, **settings) as rekindle:
        yield Site(rekindle, collector)


def test_a_stream_is_told_of_until_its_last_piece(site):
    assert site.get("/call") == (b"piece" * 3, True)
    tree = site.tree()
    tree.check()
    application = tree.one("application")
    assert took(application) >= 0.4 and application.attributes["rekindle.pieces"] == 3 and not application.failed
    assert 190_000 <= application.attributes["rekindle.first_us"] <= took(application) * 1e6 - 190_000
    # What it calls after its head has gone is a part of it.
    other = Tree(site.collector, site.rekindle, "POST web-Other")
    assert (other.top.trace, other.top.parent) == (application.trace, application.id)
    assert tree.one("application", "first byte").end <= application.end - 290 * MILLISECOND
    assert tree.one("stream").attributes["rekindle.pieces"] == 3


def test_a_stream_that_fails_in_the_middle_says_why(site):
    assert site.get("/fail") == (b"piece" * 3, False)
    tree = site.tree()
    application = tree.one("application")
    assert application.failed and application.problem == "ValueError: no ink: 50%, black; gone\nor lost"
    assert application.attributes["rekindle.pieces"] == 3 and took(application) >= 0.4


def test_who_goes_on_after_the_answer_holds_nobody_up(site):
    assert site.get("/after") == (b"piece" * 3, True)
    tree = site.tree()
    assert abs(tree.one("application").end - tree.program.end) <= MILLISECOND
    site.rekindle.wait(lambda: site.deployer.service("web-Site")["in_flight"] == 0, "its place to be given back", limit=4)


def test_a_client_that_goes_in_the_middle_ends_the_span(site):
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
    connection.request("GET", "/left")
    answer = connection.getresponse()
    assert answer.read(5) == b"piece"
    answer.close()
    connection.close()
    tree = site.tree()
    assert tree.one("application").attributes["rekindle.pieces"] >= 1


@pytest.mark.parametrize("ends_well", (True, False))
def test_a_websocket_is_told_of_until_its_end(site, ends_well):
    with connect(f"ws://127.0.0.1:{site.port}/talk", open_timeout=60, proxy=None) as socket:
        heads = socket.response.headers
        assert heads["x-own"] == "1" and not any(name.lower().startswith("rekindle") for name in heads)
        for word in ("one", "two"):
            socket.send(word)
            assert socket.recv(timeout=60) == word
        if not ends_well:
            socket.send("fail")
            with pytest.raises(ConnectionClosed):
                socket.recv(timeout=60)
    tree = site.tree()
    application = tree.one("application")
    attributes = application.attributes
    assert (attributes["rekindle.received"], attributes["rekindle.pieces"]) == (2 if ends_well else 3, 2)
    assert took(application) >= 0.1 and attributes["rekindle.first_us"] >= 50_000
    assert (application.failed, application.problem) == (not ends_well, "" if ends_well else "KeyError: 'socket'")


def test_a_method_that_raises_says_what(site):
    before = sum(one.name == "POST web-Other" for one in site.collector.spans)
    with pytest.raises(ValueError, match="not this one"):
        package.Cls.from_name("web", "Other")().fail.remote()
    tree = Tree(site.collector, site.rekindle, "POST web-Other", before + 1)
    assert tree.one("method").problem == "ValueError: not this one"


def test_whoever_is_not_followed_is_asked_nothing(site):
    before = len(site.collector.spans)
    assert site.get("/call", traceparent=f"{PARENT}0") == (b"piece" * 3, True)
    assert site.get("/stream")[1]
    site.tree()
    assert not any(one.trace == PARENT[3:35] for one in site.collector.spans[before:])


def test_what_nobody_asks_for_is_not_kept_for_ever():
    async def ask():
        later = LateTraces()
        trace = tracing.Trace.of([("traceparent", PARENT + "1")])
        paths = []
        for _ in range(MOST + 1):
            late, (name, path) = later.promise(trace)
            assert name == AT
            paths.append(path)
        late.is_over.set()
        assert await later.take(paths[0]) is None and await later.take(paths[-1]) == []
        assert await later.take(paths[-1]) is None, "once"
        assert len(later.kept) == MOST - 1

    asyncio.run(ask())
