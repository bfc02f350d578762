"""Sockets through checkpoint and restore: servers, their clients, and what a program has connected to whom."""

import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from rekindle import PATIENCE, CommandError

NETWORK = Path(__file__).parent / "network"


class Client(threading.Thread):
    """Asks without a pause, on one connection or on a new one each time, until it is told to stop."""

    def __init__(self, port, keeps):
        super().__init__()
        self.port, self.keeps, self.answered, self.failure = port, keeps, 0, None
        self.stop = threading.Event()
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            while not self.stop.wait(0.005):
                connection.request("GET", "/")
                int(connection.getresponse().read())
                self.answered += 1
                if not self.keeps:
                    connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.failure = error
        finally:
            connection.close()


@pytest.mark.parametrize("first", ["near", "far"])
def test_a_program_whose_own_connections_have_just_ended_comes_back(rekindle, first):
    """The kernel keeps their ports for a minute, which its sockets want again."""
    go = rekindle.root / "go"
    rekindle.run("program", sys.executable, NETWORK / "within.py", go, first)
    rekindle.wait_lines("program", 1)
    rekindle("checkpoint", "program", "--to", "image", "--leave-running")
    for name in ("program", "again", "and-again"):
        go.touch()
        rekindle.wait(lambda name=name: not rekindle.sandbox(name)["pid"], f"the end of {name}")
        assert rekindle.lines(name)[-1] == "done"
        go.unlink()
        if name != "and-again":
            rekindle.restore("image", {"program": "again", "again": "and-again"}[name])


def test_no_request_fails_over_a_checkpoint_that_leaves_the_server_running(rekindle):
    rekindle.run("server", sys.executable, NETWORK / "server.py")
    port = int(rekindle.wait_lines("server", 1)[0])
    clients = [Client(port, keeps=index % 2 == 0) for index in range(20)]
    try:
        for image in ("one", "two"):
            so_far = [client.answered for client in clients]
            rekindle.wait(lambda so_far=so_far: all(c.answered > then or c.failure for c, then in zip(clients, so_far, strict=True)), "answers")
            rekindle("checkpoint", "server", "--to", image, "--leave-running")
        so_far = [client.answered for client in clients]
        rekindle.wait(lambda: all(c.answered > then or c.failure for c, then in zip(clients, so_far, strict=True)), "answers")
    finally:
        for client in clients:
            client.stop.set()
        for client in clients:
            client.join()
    assert [client.failure for client in clients] == [None] * 20
    rekindle("kill", "server")
    rekindle.wait_end("server")
    # Restored, its old clients are gone and new ones are served, with what it had in its memory.
    rekindle.restore("two", "again")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/")
    assert int(connection.getresponse().read()) >= 20
    assert rekindle.sandbox("again")["pid"]


@pytest.mark.parametrize("within", [[], ["within"]])
def test_a_server_that_was_stopped_with_clients_comes_back_at_once(rekindle, within):
    """What the kernel keeps of their connections for a minute does not keep the port."""
    rekindle.run("web-0", sys.executable, NETWORK / "server.py", 0, *within)
    port = int(rekindle.wait_lines("web-0", 1)[0])
    clients = []
    for number in range(3):
        clients.append(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE))
        clients[-1].request("GET", "/")
        assert int(clients[-1].getresponse().read()) == number
        rekindle("checkpoint", f"web-{number}", "--to", f"image-{number}", "--stop")
        rekindle.restore(f"image-{number}", f"web-{number + 1}")
    for client in clients:
        client.close()


def test_python_s_own_server_comes_back(rekindle):
    page = rekindle.root / "page"
    page.write_text("a page")
    # It says where it listens, and would keep that to itself for as long as there is little to say.
    rekindle.run("web", sys.executable, "-u", "-m", "http.server", 0, "--bind", "127.0.0.1", "--directory", rekindle.root)
    port = int(re.search(r" port (\d+) ", rekindle.wait_lines("web", 1)[0])[1])

    def page_is_there():
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=PATIENCE) as answer:
            return answer.read() == b"a page"

    assert page_is_there()
    rekindle("checkpoint", "web", "--to", "image", "--stop")
    assert not page_is_there()
    rekindle.restore("image", "again")
    assert page_is_there()
    # A second one would get none of the requests, or all.
    with pytest.raises(CommandError) as refusal:
        rekindle.restore("image", "beside")
    message = refusal.value.message
    assert f"127.0.0.1:{port}" in message and f"process {rekindle.sandbox('again')['pid']} (" in message
    assert page_is_there()


class Outside:
    """What a program of `connections.py` is connected to."""

    def __init__(self, rekindle):
        self.rekindle = rekindle
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.full = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.filling = [socket.socket() for _ in range(3)]
        for sock in self.filling:
            sock.setblocking(False)
            sock.connect_ex(self.full.getsockname())
        self.log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.log.bind(str(rekindle.root / "log.sock"))
        self.log.settimeout(PATIENCE)
        self.go = rekindle.root / "go"

    def run(self, name):
        ports = [sock.getsockname()[1] for sock in (self.listener, self.full)]
        self.rekindle.run(name, sys.executable, NETWORK / "connections.py", self.go, *ports, self.log.getsockname())
        lines = self.rekindle.wait_lines(name, 1)
        self.accepted = [self.listener.accept()[0] for _ in range(2)]
        for sock in self.accepted:
            sock.settimeout(PATIENCE)
        self.in_backlog = socket.create_connection(("127.0.0.1", int(lines[0])), timeout=PATIENCE)
        self.in_backlog.sendall(b"waiting")

    def result(self, name):
        self.go.touch()
        line = self.rekindle.wait_end(name)[-1]
        assert self.log.recv(100) == b"logged"
        return json.loads(line)


WITHIN = {"own": "unread", "own answer": "answer", "udp": "datagram"}


def test_connections_go_on_in_a_program_that_is_left_running(rekindle):
    outside = Outside(rekindle)
    outside.run("connected")
    rekindle("checkpoint", "connected", "--to", "image", "--leave-running")
    for sock in outside.accepted:
        sock.sendall(b"x")
    assert outside.result("connected") == WITHIN | {"blocking": "x", "loop": "x", "half open": "none", "in backlog": "waiting"}


def test_a_restored_program_finds_connections_to_others_reset(rekindle):
    outside = Outside(rekindle)
    outside.run("connected")
    rekindle("checkpoint", "connected", "--to", "image", "--stop")
    # Those at the other ends are told.
    for sock in [*outside.accepted, outside.in_backlog]:
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    rekindle.restore("image", "again")
    reset = dict.fromkeys(("blocking", "loop"), "ConnectionResetError")
    assert outside.result("again") == WITHIN | reset | {"half open": "ECONNRESET", "in backlog": "BlockingIOError"}


def test_a_program_started_without_rekindle_finds_them_reset_too(rekindle):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = (
            "import socket, sys, time\n"
            f"s = socket.create_connection({listener.getsockname()!r})\n"
            "s.sendall(b'here')\n"
            "try: s.recv(1)\n"
            "except ConnectionResetError: open(sys.argv[1], 'w').write('reset')\n"
            "time.sleep(1000)"
        )
        told = rekindle.root / "told"
        null = subprocess.DEVNULL
        program = subprocess.Popen([sys.executable, "-c", code, told], stdin=null, stdout=null, stderr=null, start_new_session=True)
        try:
            accepted, _ = listener.accept()
            # It knows by now that it is connected.
            assert accepted.recv(4) == b"here"
            rekindle("checkpoint", "--pid", program.pid, "--to", "image", "--stop")
            program.wait(PATIENCE)
        finally:
            program.kill()
        accepted.close()
    rekindle.restore("image", "again")
    rekindle.wait(lambda: told.exists() and told.read_text() == "reset", "the reset")


def test_a_unix_socket_whose_directory_is_gone_by_then_listens_there_again(rekindle):
    path = rekindle.root / "gone/too/service.sock"
    path.parent.mkdir(parents=True)
    code = """import socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
print("up", flush=True)
while True:
    s.accept()[0].sendall(b"here")"""
    rekindle.run("service", sys.executable, "-c", code, path)
    rekindle.wait_lines("service", 1)
    rekindle("checkpoint", "service", "--to", "image", "--stop")
    shutil.rmtree(rekindle.root / "gone")
    rekindle.restore("image", "again")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
        assert caller.recv(4) == b"here"
    rekindle("kill", "again")
    shutil.rmtree(rekindle.root / "gone")
    (rekindle.root / "gone").write_text("a file")
    with pytest.raises(CommandError) as refusal:
        rekindle.restore("image", "third")
    assert f"has a Unix socket in {path.parent}" in refusal.value.message


def test_a_unix_connection_to_the_outside_is_refused_by_name(rekindle):
    path = rekindle.root / "service.sock"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(path))
        service.listen()
        code = "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nprint('up', s.fileno(), flush=True)\ntime.sleep(1000)"
        rekindle.run("caller", sys.executable, "-c", code, path)
        number = rekindle.wait_lines("caller", 1)[0].split()[1]
        with pytest.raises(CommandError) as refusal:
            rekindle("checkpoint", "caller", "--to", "image", "--leave-running")
    message = refusal.value.message
    assert str(path) in message and f"descriptor {number}" in message and str(rekindle.sandbox("caller")["pid"]) in message
