"""WebSockets through a service's port: messages of both kinds, large ones, and how a connection ends."""

import json
import os
import ssl
import sys
import time
from pathlib import Path
from socket import SHUT_RDWR

import pytest
from collector import collecting
from rekindle import PATIENCE
from test_services import begun, image
from test_services_tls import certificate
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.sync.client import connect

SERVER = Path(__file__).parent / "services/websocket.py"
LARGE = 8 << 20


@pytest.fixture
def rekindle():
    with begun() as instance:
        yield instance


class Chat:
    """The service `chat` of a server that gives messages back."""

    def __init__(self, rekindle, *options, context=None):
        self.rekindle, self.context = rekindle, context
        image(rekindle, "one", sys.executable, SERVER)
        serve = ("serve", "one", "--name", "chat", "--port", "127.0.0.1:0", "--to", 8000)
        self.port = rekindle.json(*serve, *options)["port"]

    def connect(self):
        scheme = "wss" if self.context else "ws"
        address = f"{scheme}://127.0.0.1:{self.port}/chat"
        offered = ["other", "chat"]
        return connect(address, ssl=self.context, subprotocols=offered, open_timeout=PATIENCE, max_size=None, proxy=None)

    def shown(self):
        (shown,) = self.rekindle.json("services")["services"]
        return shown

    def instances(self):
        """Names of those that take requests."""
        return [one["name"] for one in self.shown()["instances"] if one["stage"] == "running"]

    def is_idle(self):
        return self.shown()["in_flight"] == 0

    def ended(self):
        self.rekindle.wait(self.is_idle, "the end of the connection")


def say(socket, *messages):
    """Says all of it before it hears any."""
    for message in messages:
        socket.send(message)
    for message in messages:
        assert socket.recv(timeout=PATIENCE) == message


def talk(chat):
    """Of everything a little."""
    with chat.connect() as socket:
        assert socket.subprotocol == "chat" and socket.response.status_code == 101
        say(socket, "hello", b"\0\xff binary", "", b"", "Grüße, 世界")
        data = os.urandom(LARGE)
        for large in (data, data.hex()):
            say(socket, large)
        # In pieces, which are one message.
        socket.send([b"a" * 100_000, b"b", b"c" * 100_000])
        assert socket.recv(timeout=PATIENCE) == b"a" * 100_000 + b"b" + b"c" * 100_000
        assert socket.ping().wait(PATIENCE)
        assert not chat.is_idle()
    assert socket.close_code == 1000
    chat.ended()


def test_messages_go_both_ways_over_a_websocket(rekindle):
    talk(Chat(rekindle))


def test_messages_go_both_ways_over_a_websocket_with_tls(rekindle, tmp_path):
    files = certificate(tmp_path, "one")
    context = ssl.create_default_context(cafile=files[0])
    talk(Chat(rekindle, "--tls-certificate", files[0], "--tls-key", files[1], context=context))


def test_both_sides_learn_how_a_websocket_was_closed(rekindle):
    chat = Chat(rekindle)
    for code, reason in ((1000, "done"), (1011, "failed"), (4321, "own")):
        with chat.connect() as socket:
            socket.send(f"close {code} {reason}")
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=PATIENCE)
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (code, reason)
        assert closed.value.rcvd_then_sent
    with chat.connect() as socket:
        socket.close(4000, "enough")
        assert (socket.close_code, socket.close_reason) == (4000, "enough")
    chat.ended()


def test_a_websocket_ends_with_its_client_and_with_its_instance(rekindle):
    chat = Chat(rekindle)
    # A client that goes without a word gives its place back.
    with chat.connect() as socket:
        say(socket, "hello")
        socket.socket.shutdown(SHUT_RDWR)
        chat.ended()
    with chat.connect() as socket:
        say(socket, "hello")
        rekindle("kill", "chat-1", "--signal", 9)
        with pytest.raises(ConnectionClosedError) as closed:
            socket.recv(timeout=PATIENCE)
        assert closed.value.rcvd is None, "nobody has closed it"
    rekindle.wait(lambda: "chat-1" not in chat.instances(), "the instance to be gone")
    # The next one is another instance's.
    with chat.connect() as socket:
        say(socket, "again")


def test_a_websocket_is_told_of_when_it_ends_with_what_went_over_it(tmp_path):
    log = tmp_path / "access.log"
    with (
        collecting() as (collector, address),
        begun(OTEL_EXPORTER_OTLP_ENDPOINT=address, REKINDLE_ACCESS_LOG=str(log)) as rekindle,
    ):
        chat = Chat(rekindle)
        with chat.connect() as socket:
            say(socket, os.urandom(1000))
            said = time.time_ns()
            time.sleep(0.2)
            assert not log.exists() or not log.read_text()
            say(socket, os.urandom(1000))
        chat.ended()
        rekindle.wait(lambda: log.exists() and log.read_text().endswith("\n"), "its line")
        (line,) = (json.loads(line) for line in log.read_text().splitlines())
        # Beside the messages go their heads, and the words of closing.
        assert line["status"] == 101 and line["instance_us"] > 200_000
        assert 2000 < line["bytes_in"] < 2100 and 2000 < line["bytes_out"] < 2100
        rekindle.wait(lambda: collector.one(**{"rekindle.request_id": line["request_id"]}), "its span")
        whole = collector.one(**{"rekindle.request_id": line["request_id"]})
        program = next(one for one in collector.below(whole) if one.name == "program")
        (stream,) = (one for one in collector.below(program) if one.name == "stream")
        assert program.begin <= stream.begin <= said and stream.end == program.end == whole.end
        assert stream.end - stream.begin > 200_000_000
        assert stream.attributes["rekindle.bytes"] == line["bytes_out"] and stream.attributes["rekindle.pieces"] >= 2
