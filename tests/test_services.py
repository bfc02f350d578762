"""Services: requests that come to a port go to instances of an image, which come and go with them."""

import asyncio
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rekindle import PATIENCE, CommandError, Rekindle
from test_private_network import daemon, fails

SERVER = Path(__file__).parent / "services/server.py"


@contextlib.contextmanager
def begun(**environment):
    """A Rekindle whose services go before it: they would bring up again what is ended."""
    with Rekindle(**environment) as instance:
        try:
            yield instance
        finally:
            for mark in instance.root.glob("*.held"):
                mark.with_suffix(".go").touch()
            for service in instance.json("services")["services"]:
                instance("unserve", service["name"], "--tenant", service["tenant"] or "none", "--now")


@pytest.fixture
def rekindle():
    with begun() as instance:
        yield instance


def image(rekindle, name, *command):
    """Takes an image of a program that has printed a line, and ends it."""
    rekindle("run", "-d", "--name", f"made-{name}", "--gpu", rekindle.gpu, "--network", "private", "--", *command)
    assert rekindle.wait_lines(f"made-{name}", 1)
    rekindle("checkpoint", f"made-{name}", "--to", name, "--stop")


class Web:
    """The service `web` of a server that counts."""

    def __init__(self, rekindle, *options, tag="one"):
        self.rekindle = rekindle
        image(rekindle, tag, sys.executable, SERVER, tag)
        self.port = self.serve(tag, "--port", "127.0.0.1:0", "--to", 8000, *options)["port"]

    def serve(self, image, *options):
        return self.rekindle.json("serve", image, "--name", "web", *options)

    def shown(self):
        (shown,) = self.rekindle.json("services")["services"]
        return shown

    def stages(self):
        return sorted(instance["stage"] for instance in self.shown()["instances"])

    def come_to(self, *stages):
        self.rekindle.wait(lambda: self.stages() == sorted(stages), f"instances {stages}")

    def ask(self, path="/", method="GET", body=None, headers=()):
        """Status, headers and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def get(self, path="/"):
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def is_closed(self):
        try:
            self.connect().close()
        except ConnectionError:
            return True
        return False

    def mark(self, name):
        return self.rekindle.root / name

    def held(self, name):
        """Waits until a request is in its instance's hands."""
        self.rekindle.wait(self.mark(f"{name}.held").exists, f"{name} to be held")

    def let_go(self, name):
        self.mark(f"{name}.go").touch()


def test_instances_go_by_stages_and_come_back_with_a_request(rekindle):
    web = Web(rekindle, "--idle", "10ms", "--idle-end", "1h")
    web.come_to("asleep")
    assert rekindle.sandbox("web-1")["state"] == "asleep"
    first = web.get("/?a=b")
    assert (first["count"], first["tag"], first["path"]) == (2, "one", "/?a=b")
    assert first["headers"]["x-forwarded-for"] == "127.0.0.1"
    assert first["headers"]["host"] == f"127.0.0.1:{web.port}"
    web.come_to("asleep")
    assert web.get() | {"headers": {}} == first | {"count": 3, "headers": {}, "path": "/"}
    # What is not said stays as it is; the image alone is left.
    web.serve("one", "--idle-end", "0s")
    web.come_to()
    assert web.shown()["plan"]["idle_ms"] == 10
    assert "none" in rekindle("services")
    again = web.get()
    assert again["count"] == 2
    # Clients come elsewhere, once they can.
    before, web.port = web.port, web.serve("one", "--port", "127.0.0.1:0")["port"]
    assert web.port != before and web.get()["tag"] == "one"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", before))
    rekindle("scale", "web", "--min", 1)
    rekindle.wait(lambda: "running" in web.stages(), "an instance that stays")
    rekindle.wait(lambda: web.shown()["served"] == 4, "all to be counted")
    assert web.shown()["problem"] is None and web.shown()["failed"] == 0


def test_more_come_when_requests_wait_and_too_many_are_refused(rekindle):
    web = Web(rekindle, "--max", 2, "--concurrency", 1, "--queue", 1)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(web.ask, f"/hold?{web.mark('a')}")
        web.held("a")
        second = threads.submit(web.ask, f"/hold?{web.mark('b')}")
        web.held("b")
        assert web.stages() == ["running", "running"]
        third = threads.submit(web.ask, "/")
        rekindle.wait(lambda: web.shown()["queued"] == 1, "a request that waits")
        status, headers, body = web.ask()
        assert (status, headers["Retry-After"]) == (429, "1") and b"'web'" not in body and b'"web"' in body
        web.let_go("a")
        assert first.result()[0] == third.result()[0] == 200
        # Fewer are enough.
        rekindle("scale", "web", "--max", 1)
        web.let_go("b")
        assert second.result()[0] == 200
        rekindle.wait(lambda: len(web.stages()) == 1, "one that is left")
        # One that waits too long is told so.
        fourth = threads.submit(web.ask, f"/hold?{web.mark('c')}")
        web.held("c")
        web.serve("one", "--timeout", "50ms")
        status, headers, body = web.ask()
        assert (status, headers["Retry-After"]) == (503, "1") and b"in time" in body
        web.let_go("c")
        assert fourth.result()[0] == 200
    assert web.shown()["refused"] == 2


def test_an_instance_that_is_killed_fails_what_cannot_be_asked_twice(rekindle):
    web = Web(rekindle)
    with ThreadPoolExecutor(2) as threads:
        asked = threads.submit(web.ask, f"/hold?{web.mark('a')}")
        told = threads.submit(web.ask, f"/hold?{web.mark('b')}", "POST", b"once")
        web.held("a")
        web.held("b")
        rekindle("kill", "web-1", "--signal", 9)
        status, _, body = told.result()
        assert status == 502 and b"web-1" in body and body.count(b"\n") == 1
        # The other goes to the next one.
        web.let_go("a")
        assert asked.result()[::2] == (200, b"held")
    # It is asked twice, and not a third time.
    status, _, body = web.ask("/crash")
    assert status == 502 and b"web-" in body
    assert web.ask("/close")[0] == 502
    # Who has a part of an answer does not take it for the whole.
    with pytest.raises(http.client.IncompleteRead):
        web.ask("/end")
    assert web.get()["tag"] == "one"
    rekindle.wait(lambda: web.shown()["in_flight"] == 0, "the end of all requests")


def test_one_that_cannot_be_woken_is_ended_and_another_answers():
    with begun(REKINDLE_FAULT="wake-begun") as rekindle:
        web = Web(rekindle)
        assert web.get()["count"] == 2
        web.serve("one", "--idle", "10ms", "--idle-end", "1h")
        web.come_to("asleep")
        # It would be the third of the one that sleeps.
        assert web.get()["count"] == 2
        assert web.shown()["failed"] == 0


def test_bodies_go_both_ways_as_they_come(rekindle):
    web = Web(rekindle)
    events = http.client.HTTPConnection("127.0.0.1", web.port, timeout=PATIENCE)
    events.request("GET", f"/events?{web.mark('a')}")
    answer = events.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.readline() == b"data: first\n"
    web.let_go("a")
    assert answer.read() == b"\ndata: second\n\n"
    with web.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        heads = iter(stream.readline, b"\r\n")
        assert next(heads).startswith(b"HTTP/1.1 200") and all(heads)
        for data in (b"one", b"two", b"x" * 100_000):
            sock.sendall(b"%x\r\n%s\r\n" % (len(data), data))
            got = b""
            while len(got) < len(data):
                got += stream.read(int(stream.readline(), 16))
                stream.readline()
            assert got == data
        sock.sendall(b"0\r\n\r\n")
        assert stream.read(5) == b"0\r\n\r\n"
        # The connection is good for another request.
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert stream.readline().startswith(b"HTTP/1.1 200")
    with web.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: shout\r\n\r\n")
        heads = list(iter(stream.readline, b"\r\n"))
        assert heads[0].startswith(b"HTTP/1.1 101") and b"upgrade: shout\r\n" in [head.lower() for head in heads]
        for line in (b"hello\n", b"again\n"):
            sock.sendall(line)
            assert stream.readline() == line.upper()
        rekindle.wait(lambda: web.shown()["in_flight"] == 1, "the end of all others")
    rekindle.wait(lambda: web.shown()["in_flight"] == 0, "the end of the upgraded connection")


def test_clients_that_go_give_their_places_back(rekindle):
    web = Web(rekindle, "--max", 1, "--concurrency", 1)
    with web.connect() as first, web.connect() as second:
        first.sendall(f"GET /hold?{web.mark('a')} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        web.held("a")
        second.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        rekindle.wait(lambda: web.shown()["queued"] == 1, "a request that waits")
        second.close()
        rekindle.wait(lambda: web.shown()["queued"] == 0, "its client's going")
        assert web.shown()["in_flight"] == 1
    assert web.get()["count"] == 2
    web.let_go("a")


def memory(rekindle, kind="VmRSS"):
    """The daemon's, in kilobytes."""
    status = Path(f"/proc/{daemon(rekindle)}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind))


def test_heads_without_end_are_refused_and_bodies_without_end_are_not_kept(rekindle):
    web = Web(rekindle)
    with web.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 431")
    with web.connect() as sock, contextlib.suppress(ConnectionError):
        for _ in range(100):
            sock.sendall(b"X" * 65536)
        pytest.fail("it was read on and on")

    web.get()
    before, data = memory(rekindle), b"x" * (1 << 20)
    with web.connect() as sock:
        sock.sendall(f"POST /hold?{web.mark('a')} HTTP/1.1\r\nHost: a\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        web.held("a")
        sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(200):
                sock.sendall(data)
            pytest.fail("somebody has taken it all")
    assert memory(rekindle) - before < 32 << 10, "kilobytes"
    # What the kernel keeps of it hides that the client has gone, until somebody reads or ends.
    web.let_go("a")
    rekindle.wait(lambda: web.shown()["in_flight"] == 0, "the request's end")


@contextlib.contextmanager
def descriptors(most):
    """So many for this process, and for those that it starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, max(most, before[1])))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def told(web, full=None):
    """What one client is told: status, head and body. It ends its request once others have begun theirs, if it is to wait for that."""
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n")
    if full:
        await full.wait()
    writer.write(b"Connection: close\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    # Thousands of ports that are used up would be missed by others.
    writer.transport.abort()
    return int(head.split(b" ")[1]), head.lower().split(b"\r\n"), body


def test_ten_thousand_clients_at_once_are_all_answered(rekindle):
    clients, waiting, room = 10_000, 100, 1024
    # A quarter of what the daemon may have open is for clients.
    with descriptors(4 * room), ThreadPoolExecutor(1) as threads:
        web = Web(rekindle, "--queue", waiting, "--max", 1, "--concurrency", 1, "--timeout", "10m")
        held = threads.submit(web.ask, f"/hold?{web.mark('a')}")
        web.held("a")
        before, opened = memory(rekindle), Path(f"/proc/{daemon(rekindle)}/fd")
        others = len(os.listdir(opened))
        answers = []

        async def one(full):
            answers.append(await told(web, full))
            if len(answers) == clients - waiting:
                web.let_go("a")

        async def all():
            full = asyncio.Event()
            everyone = asyncio.gather(*(one(full) for _ in range(clients)))
            while len(os.listdir(opened)) < others + room - 50:
                await asyncio.sleep(0.02)
            # The others wait to be let in.
            await asyncio.sleep(0.2)
            assert len(os.listdir(opened)) < others + room + 50
            full.set()
            await everyone

        with descriptors(clients + 500):
            asyncio.run(asyncio.wait_for(all(), PATIENCE))
        assert held.result()[0] == 200
    assert [status for status, *_ in answers] == [429] * (clients - waiting) + [200] * waiting
    for status, head, body in answers:
        assert b"retry-after: 1" in head if status == 429 else json.loads(body)["tag"] == "one"
    assert memory(rekindle, "VmHWM") - before < 64 << 10, "kilobytes"
    assert web.get()["tag"] == "one"
    assert web.shown()["refused"] == clients - waiting


def test_a_thousand_clients_at_once_are_all_served(rekindle):
    with descriptors(4096):
        web = Web(rekindle, "--queue", 1000, "--max", 2)

        async def all():
            return await asyncio.wait_for(asyncio.gather(*(told(web) for _ in range(1000))), PATIENCE)

        assert [status for status, *_ in asyncio.run(all())] == [200] * 1000
    assert len(web.stages()) <= 2


class Load:
    """Asks without a pause, by some threads, until it is told to stop. What is lost as it may be is counted, and asked again."""

    def __init__(self, web, clients=4, may_be=()):
        self.web, self.answers, self.failures, self.goes_on = web, [], [], True
        self.counts, self.lost, self.may_be = [0] * clients, [0] * clients, may_be
        self.threads = [threading.Thread(target=self.one, args=[client]) for client in range(clients)]

    def one(self, client):
        try:
            while self.goes_on:
                try:
                    self.answers.append(self.web.get()["tag"])
                    self.counts[client] += 1
                except self.may_be:
                    self.lost[client] += 1
                    time.sleep(0.02)
        except Exception as error:
            self.failures.append(error)

    def more(self):
        """Until each has been answered what it asks now, and more."""
        before = list(self.counts)
        self.until(lambda: all(now > then + 3 for now, then in zip(self.counts, before, strict=True)), "more answers")

    def until(self, condition, what):
        self.web.rekindle.wait(lambda: self.failures or condition(), what)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.goes_on = False
        for thread in self.threads:
            thread.join(PATIENCE)


def test_a_new_image_takes_the_place_of_the_old_one_without_a_failed_request(rekindle):
    web = Web(rekindle, "--max", 2)
    image(rekindle, "two", sys.executable, SERVER, "two")
    image(rekindle, "deaf", sys.executable, "-c", "print('up', flush=True); import time; time.sleep(1000)")
    with Load(web) as load:
        load.until(lambda: len(load.answers) > 20, "answers of the old one")
        # One that does not serve changes nothing.
        error = fails(rekindle, "serve", "deaf", "--name", "web", "--timeout", "1s")
        assert "'deaf'" not in error.message and '"deaf"' in error.message and "8000" in error.message
        assert web.shown()["source"]["image"] == "one" and web.shown()["plan"]["timeout_ms"] == 60000
        # Nor does one that listens and says that it is not ready.
        ready = ("--ready", f"/ready?{web.mark('ready')}")
        assert "/ready" in fails(rekindle, "serve", "two", "--name", "web", "--timeout", "1s", *ready).message
        command = rekindle.begin("serve", "two", "--name", "web", *ready)
        rekindle.wait(lambda: "starting" in web.stages(), "an instance of the new one")
        web.mark("ready").touch()
        command.end()
        count = len(load.answers)
        load.until(lambda: load.answers[count:].count("two") > 20, "answers of the new one")
    assert load.failures == []
    assert load.answers[0] == "one" and set(load.answers) == {"one", "two"}
    rekindle.wait(lambda: {row["image"] for row in rekindle.sandboxes() if row["pid"]} == {"two"}, "the end of the old ones")
    assert web.shown()["failed"] == web.shown()["refused"] == 0


def test_a_checkpoint_or_a_kill_costs_nobody_an_answer(rekindle):
    web = Web(rekindle, "--max", 2)
    with Load(web) as load:
        load.more()
        rekindle("checkpoint", "web-1", "--to", "taken", "--leave-running")
        for _ in range(3):
            load.more()
            running = [one["name"] for one in web.shown()["instances"] if one["stage"] == "running"]
            rekindle("kill", running[0], "--signal", 9)
        load.more()
    assert load.failures == []
    # What was taken of an instance is an image as any other.
    web.serve("taken")
    assert web.get()["count"] > 10


def test_a_service_outlives_its_daemon(rekindle):
    web = Web(rekindle, "--idle", "1h")
    first = web.get()
    with web.connect() as sock:
        sock.sendall(f"GET /hold?{web.mark('a')} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        web.held("a")
        os.kill(daemon(rekindle), signal.SIGKILL)
        # It is told, and does not wait.
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    rekindle.wait(web.is_closed, "its port to be closed")
    web.let_go("a")
    # The next daemon finds the instance again.
    assert web.stages() == ["running"]
    second = web.get()
    assert (second["instance"], second["count"]) == (first["instance"], first["count"] + 1)
    web.serve("one", "--idle", "10ms")
    web.come_to("asleep")
    rekindle("shutdown")
    # Its port is another's meanwhile, and it has it back in time.
    rekindle.wait(web.is_closed, "its port to be closed")
    with socket.create_server(("127.0.0.1", web.port)):
        assert web.shown()["problem"] and str(web.port) in web.shown()["problem"]
    rekindle.wait(lambda: web.shown()["problem"] is None, "its port")
    assert web.get()["count"] == second["count"] + 1
    rekindle("unserve", "web")
    rekindle("shutdown")
    assert rekindle.json("services")["services"] == []


def test_a_daemon_that_is_killed_under_load_has_no_client_wait_and_loses_no_instance(rekindle):
    web = Web(rekindle, "--min", 2, "--max", 2)
    instances = lambda: sorted((row["name"], row["pid"]) for row in rekindle.sandboxes() if row["name"].startswith("web-"))
    web.come_to("running", "running")
    before = instances()
    with Load(web, 50, (ConnectionError, http.client.HTTPException)) as load:
        for _ in range(2):
            load.more()
            lost = list(load.lost)
            os.kill(daemon(rekindle), signal.SIGKILL)
            # Each is told of what it asked, or that nobody is there.
            load.until(lambda lost=lost: all(now > then for now, then in zip(load.lost, lost, strict=True)), "all clients to be told")
            # The next daemon has the instances, with those that still have requests of the last one.
            assert instances() == before
        load.more()
    assert load.failures == []
    assert web.stages() == ["running", "running"] and instances() == before
    rekindle.wait(lambda: web.shown()["in_flight"] == 0, "the end of all requests")
    assert web.shown()["failed"] == 0


def test_a_service_that_drains_answers_what_it_has_and_no_more(rekindle):
    web = Web(rekindle)
    with ThreadPoolExecutor(2) as threads, web.connect() as kept:
        held = threads.submit(web.ask, f"/hold?{web.mark('a')}")
        web.held("a")
        command = rekindle.begin("drain", "web")
        rekindle.wait(lambda: web.shown()["draining"], "it to drain")
        kept.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = kept.recv(1000)
        assert answer.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in answer.lower()
        assert command.process.poll() is None
        web.let_go("a")
        assert held.result()[0] == 200
        command.end()
        web.come_to()
        # `serve` has it go on.
        web.serve("one")
        assert web.get()["tag"] == "one"
        # A request that never ends does not keep it for ever.
        lost = threads.submit(web.ask, f"/hold?{web.mark('b')}", "POST", b"")
        web.held("b")
        rekindle("unserve", "web", "--now")
        assert lost.result()[0] == 502
    with pytest.raises(ConnectionRefusedError):
        web.connect()
    assert [row for row in rekindle.sandboxes() if row["pid"]] == []
    assert "web" in fails(rekindle, "scale", "web", "--max", 2).message


@pytest.mark.parametrize("point", ["sleep-saved", "sleep-ready"])
def test_a_request_that_comes_while_an_instance_falls_asleep_wakes_it(point):
    with begun(REKINDLE_FAULT=f"{point}:hang") as rekindle, ThreadPoolExecutor() as threads:
        web = Web(rekindle, "--idle", "10ms", "--idle-end", "1h")
        rekindle.reached(point)
        web.come_to("falling-asleep")
        asked = threads.submit(web.get)
        rekindle.wait(lambda: web.shown()["queued"] == 1, "the request to wait")
        assert web.stages() == ["falling-asleep"]
        rekindle.let_go(point)
        # No other one was started, which would count anew.
        assert asked.result()["count"] == 2
        assert [web.get()["count"] for _ in range(30)] == list(range(3, 33))
        assert [row["name"] for row in rekindle.sandboxes() if row["name"].startswith("web-")] == ["web-1"]


def test_what_clients_look_up_about_functions_does_not_count(rekindle):
    web = Web(rekindle)
    web.get()
    counts = lambda: {name: web.shown()[name] for name in ("served", "failed", "refused", "latency")}
    before = counts()
    assert before["served"] == 1
    # The program knows of no such place, and says so.
    status, headers, body = web.ask("/-/about")
    assert (status, body) == (404, b"{}") and headers["X-Request-Id"]
    assert counts() == before
    # Whatever else is asked does.
    assert web.ask("/-/about", "POST", b"")[0] == 200 and web.ask("/-/about/more")[0] == 404
    assert counts()["served"] == 3
    rekindle("drain", "web")
    assert web.ask("/-/about")[0] == 503 and counts()["refused"] == 0
    assert web.ask()[0] == 503 and counts()["refused"] == 1


def test_what_cannot_be_served_is_said_in_a_sentence(rekindle):
    web = Web(rekindle, "--idle", "0s", "--idle-end", "0s")

    def refused(*arguments):
        return fails(rekindle, "serve", *arguments).message

    assert "none" in refused("none", "--name", "other", "--port", 0)
    assert "--port" in refused("one", "--name", "other")
    assert "named" in refused("one", "--name", "../other", "--port", 0)
    assert "--max" in refused("one", "--name", "other", "--port", 0, "--max", 0)
    assert str(web.port) in refused("one", "--name", "other", "--port", f"127.0.0.1:{web.port}")
    image(rekindle, "deaf", sys.executable, "-c", "print('up', flush=True); import time; time.sleep(1000)")
    assert "--to" in refused("deaf", "--name", "other", "--port", 0, "--to", 7000, "--timeout", "500ms")
    short = f"import os, time; print('up', flush=True)\nwhile not os.path.exists({str(web.mark('end'))!r}): time.sleep(0.01)"
    image(rekindle, "short", sys.executable, "-c", short)
    web.mark("end").touch()
    assert "ended" in refused("short", "--name", "other", "--port", 0, "--to", 7000)
    assert [one["name"] for one in rekindle.json("services")["services"]] == ["web"]
    assert [row["name"] for row in rekindle.sandboxes() if row["pid"] and row["name"].startswith("other")] == []
    # An image that goes while the service has no instance is missed by the next request.
    web.come_to()
    assert "one" not in rekindle.json("prune", "--images")["images"]
    rekindle("rmi", "one")
    status, headers, body = web.ask()
    assert status == 503 and b'"one"' in body and int(headers["Retry-After"]) >= 1
    assert '"one"' in web.shown()["problem"] and '"one"' in rekindle("services")
    with pytest.raises(CommandError):
        rekindle("serve", "one", "--name", "web")


@pytest.mark.parametrize(("known", "came"), [("10.0.0.0/8", "http"), ("10.0.0.0/8,127.0.0.0/8", "https")])
def test_a_proxy_is_believed_if_the_daemon_knows_it(known, came):
    said = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https"}
    with begun(REKINDLE_TRUSTED_PROXIES=known) as rekindle:
        _, _, body = Web(rekindle).ask(headers=said.items())
    headers = json.loads(body)["headers"]
    believed = "192.0.2.1, 127.0.0.1" if came == "https" else "127.0.0.1"
    assert (headers["x-forwarded-proto"], headers["x-forwarded-for"]) == (came, believed)
