"""A running program moves to another node; whatever dies meanwhile, it goes on at one of the two, and no number is lost or repeated."""

import contextlib
import http.client
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
from interleavings import machine
from rekindle import PATIENCE, CommandError, Rekindle, free_port
from test_bad_input import kill_daemon

COUNTER = Path(__file__).parent / "nodes/counter.py"
SERVER = Path(__file__).parent / "services/server.py"


def answer(port):
    """How often the service has been asked, it says."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/")
        return json.loads(connection.getresponse().read())["count"] - 1
    finally:
        connection.close()


class Node(Rekindle):
    def __init__(self, **environment):
        self.port = free_port()
        super().__init__(REKINDLE_NODE_PORT=f"127.0.0.1:{self.port}", **environment)

    def key(self):
        return self.json("node", "id")["key"]

    def knows(self, name, other, port=None):
        self("node", "add", name, f"127.0.0.1:{port or other.port}", other.key())

    def set_fault(self, fault=None):
        """For the daemon that comes next."""
        kill_daemon(self)
        self.environment.pop("REKINDLE_FAULT", None)
        if fault:
            self.environment["REKINDLE_FAULT"] = fault

    def is_clean(self):
        """Nothing is left of migrations."""
        images = list((self.state / "store/images").glob("migration*"))
        coming = list((self.state / "nodes/coming").glob("*"))
        return not images and not coming and not list((self.state / "store/staging").glob("*"))


class Pair:
    """Two nodes that know each other, and a program at the first."""

    def __init__(self, here=None, there=None):
        self.here, self.there = Node(**(here or {})), Node(**(there or {}))
        self.go = self.here.root / "go"

    def __enter__(self):
        self.here.__enter__()
        self.there.__enter__()
        self.here.knows("there", self.there)
        self.there.knows("here", self.here)
        self.here.run("count", sys.executable, COUNTER, self.go)
        self.here.wait_lines("count", 3)
        return self

    def __exit__(self, *error):
        for node in (self.here, self.there):
            node.environment.pop("REKINDLE_FAULT", None)
        self.there.__exit__(*error)
        self.here.__exit__(*error)

    def migrate(self, *options, **how):
        return self.here.json("migrate", "count", "--to", "there", *options, **how)

    def fails(self, *options):
        with pytest.raises(CommandError) as error:
            self.migrate(*options)
        return error.value.message

    def runs_at(self, node):
        """It counts on there, and only there."""
        other = self.there if node is self.here else self.here
        so_far = len(node.lines("count"))
        node.wait_lines("count", so_far + 3)
        assert node.sandbox("count")["state"] == "running", node.sandbox("count")
        assert not any(row["name"] == "count" and row["pid"] for row in other.sandboxes())

    def end(self, node):
        """No number was lost or repeated, and nothing is left of the migration at either side."""
        self.runs_at(node)
        self.go.touch()
        lines = node.wait_end("count")
        assert lines[-1] == "ok" and lines[:-1] == [str(n + 1) for n in range(len(lines) - 1)], lines[-5:]
        for one in (self.here, self.there):
            one.wait(one.is_clean, "nothing to be left of the migration")


def daemon_of(node):
    words = [(pid, words) for pid, words in machine.processes_of(node).items() if words[0].endswith("rekindled")]
    return [pid for pid, words in words if words[1:2] == ["--background"] and machine.is_alive(pid)]


@pytest.fixture
def pair():
    with Pair() as nodes:
        yield nodes


def test_there_and_back(pair):
    before = pair.here.sandbox("count")
    report = pair.migrate()
    assert (report["name"], report["node"], report["gpu"]) == ("count", "there", "emulated")
    assert report["bytes"] == sum(row["bytes"] for row in report["rounds"]) and len(report["rounds"]) >= 2
    assert report["rounds"][-1]["bytes"] < report["rounds"][0]["bytes"] / 2 and report["stopped_us"] < report["total_us"]
    after = pair.there.sandbox("count")
    assert after["command"] == before["command"]
    gone = pair.here.sandbox("count")
    assert (gone["state"], gone["node"], gone["problem"]) == ("stopped", "there", None)
    pair.runs_at(pair.there)
    back = pair.there.json("migrate", "count", "--to", "here")
    assert back["node"] == "here"
    pair.end(pair.here)


def test_who_is_not_known_is_refused(pair):
    stranger = Node()
    with stranger:
        pair.here("node", "add", "there", f"127.0.0.1:{pair.there.port}", stranger.key())
        assert "another key" in pair.fails()
        pair.here.knows("there", pair.there)
        pair.there("node", "rm", "here")
        assert f"node add NAME ADDRESS {pair.here.key()}" in pair.fails()
        pair.there("node", "add", "here", "127.0.0.1:1", stranger.key())
        assert "does not know this node" in pair.fails()
    pair.there.knows("here", pair.here)
    assert [row["name"] for row in pair.there.json("node", "ls")["nodes"]] == ["here"]
    pair.here("node", "add", "nobody", f"127.0.0.1:{free_port()}", pair.there.key().replace("0", "1"))
    for node, said in (("nobody", "cannot be reached"), ("other", "no node named")):
        with pytest.raises(CommandError, match=said):
            pair.here("migrate", "count", "--to", node)
    for key in ("", "x" * 64, pair.here.key()):
        with pytest.raises(CommandError, match="key"):
            pair.here("node", "add", "self", "127.0.0.1:1", key)
    # What is no node is not listened to.
    for said in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(range(256)) * 300, b"\x16\x03\x01\xff\xff" + bytes(70_000)):
        with socket.create_connection(("127.0.0.1", pair.there.port)) as stream, contextlib.suppress(OSError):
            stream.sendall(said)
            stream.shutdown(socket.SHUT_WR)
            assert len(stream.recv(1000)) < 100
    pair.end(pair.here)


def test_what_the_other_node_lacks_it_says_before_the_program_stops(pair):
    there = pair.there
    pair.here.set_fault("node-stopped:kill")

    def fails_with(words, *options, name="count", **environment):
        if environment:
            kill_daemon(there)
        there.environment.update(environment)
        there.sandboxes()
        with pytest.raises(CommandError) as error:
            pair.here("migrate", name, "--to", "there", *options)
        message = error.value.message
        assert words in message and "\n" not in message, message
        for variable in environment:
            del there.environment[variable]
        if environment:
            kill_daemon(there)

    there.run("count", "sleep", "1000")
    fails_with('a sandbox named "count" exists')
    there("kill", "count")
    there("rm", "count")
    pair.here.run("large", sys.executable, COUNTER, pair.go, 20_000_000)
    pair.here.wait_lines("large", 1)
    fails_with("MB of GPU memory", name="large", REKINDLE_EMULATED="memory=64M")
    pair.here("kill", "large")
    fails_with("16 SMs", REKINDLE_EMULATED="sms=8")
    fails_with("space", REKINDLE_FAULT="disk:3000000")
    fails_with("radeon", "--gpu", "radeon:0")
    data = pair.here.root / "data"
    data.mkdir()
    pair.here("run", "-d", "--name", "volume", "--volume", f"{data}:/mnt", "--", "sleep", "1000")
    data.rmdir()
    fails_with(str(data), name="volume")
    assert pair.here.sandbox("volume")["state"] == "running"
    pair.end(pair.here)


def test_a_program_that_is_brought_back_has_an_image_there_at_once(pair):
    words = ("--every", "1h", "--restart", "on-failure")
    pair.here("run", "-d", "--name", "plan", *words, "--", sys.executable, COUNTER, pair.go)
    pair.here.wait_lines("plan", 3)
    pair.here("migrate", "plan", "--to", "there")
    there = pair.there
    there.wait(lambda: there.sandbox("plan")["recovery"]["images"] == ["plan.1"], "its image")
    so_far = len(there.lines("plan"))
    os.kill(there.sandbox("plan")["pid"], signal.SIGKILL)
    there.wait(lambda: there.sandbox("plan")["recovery"]["recoveries"] == 1, "its recovery")
    there.wait_lines("plan", so_far + 3)
    assert 'restored from the image "plan.1"' in there("logs", "plan")
    there("kill", "plan")
    pair.end(pair.here)


def test_ports_are_opened_there_and_lead_there_from_here_for_a_time(pair):
    pair.here("run", "-d", "--name", "web", "--network", "private", "-p", "0:8000", "--", sys.executable, SERVER, "web", "8000")
    pair.here.wait_lines("web", 1)
    (port,) = (row["port"] for row in pair.here.sandbox("web")["ports"])
    assert answer(port) == 1
    with pytest.raises(CommandError, match=f"port {port}"):
        pair.here("migrate", "web", "--to", "there")
    assert answer(port) == 2
    report = pair.here.json("migrate", "web", "--to", "there", "-p", "0:8000", "--forward", "1h")
    (there,) = (row["port"] for row in report["ports"])
    assert there != port and [answer(there), answer(port), answer(there)] == [3, 4, 5]
    kill_daemon(pair.here)
    assert pair.here.sandbox("web")["node"] == "there" and answer(port) == 6
    pair.here("rm", "web")
    with pytest.raises(OSError):
        answer(port)
    assert answer(there) == 7
    pair.end(pair.here)


# Until it is given away it goes on here, whatever becomes of this side or the other.
BEFORE = ["node-round", "node-stopped", "node-ready", "node-held"]
# Until it has been accepted there it has not run there.
THERE = ["arrival-received", "arrival-ready", "arrival-accepted"]
RUNS = ["arrival-running", "restore-released", "restore-running"]


def test_the_daemon_here_is_killed(pair):
    for point in [*BEFORE, "node-given"]:
        pair.here.set_fault(f"{point}:kill")
        with pytest.raises(CommandError):
            pair.migrate()
        pair.here.environment.pop("REKINDLE_FAULT")
        pair.runs_at(pair.here)
        # One that stood still says why it goes on.
        assert point == BEFORE[0] or "goes on here" in pair.here.sandbox("count")["problem"]
    pair.here.set_fault("node-told:kill")
    with pytest.raises(CommandError):
        pair.migrate()
    pair.here.environment.pop("REKINDLE_FAULT")
    pair.here.wait(lambda: pair.here.sandbox("count").get("node") == "there", "what it has asked to be answered")
    pair.end(pair.there)


def kill_there(pair, point):
    """Its daemon, when it comes to this point. The migration, which may go on with the next one."""
    pair.there.set_fault(f"{point}:kill")
    pair.there.sandboxes()
    moving = pair.here.begin("migrate", "count", "--to", "there")
    pair.there.environment.pop("REKINDLE_FAULT")
    pair.there.wait(lambda: not daemon_of(pair.there), "its daemon's end")
    pair.there.sandboxes()
    return moving


def test_the_daemon_there_is_killed_before_it_runs_there(pair):
    for point in THERE:
        with pytest.raises(CommandError, match="there"):
            kill_there(pair, point).end()
        pair.runs_at(pair.here)
    pair.end(pair.here)


def test_the_daemon_there_is_killed_when_it_runs_there(pair):
    for point in RUNS:
        kill_there(pair, point).end()
        pair.runs_at(pair.there)
        pair.there("migrate", "count", "--to", "here")
    pair.end(pair.here)


def test_a_step_that_fails_leaves_it_here(pair):
    for node, point in ((pair.here, "node-given"), (pair.there, "arrival-accepted")):
        node.set_fault(point)
        node.sandboxes()
        assert "injected" in pair.fails() or point == "node-given"
        pair.there.wait(lambda: not pair.there.sandboxes(), "what had come to be gone")
        node.set_fault()
    pair.end(pair.here)


def test_memory_of_the_host_comes_before_the_program_stops(pair):
    pair.here.run("held", sys.executable, COUNTER, pair.go, 1000, 256)
    pair.here.wait_lines("held", 3)
    # One that stays here after all is as it was, and its images have what it has.
    pair.there.set_fault("arrival-accepted")
    pair.there.sandboxes()
    with pytest.raises(CommandError, match="injected"):
        pair.here("migrate", "held", "--to", "there")
    pair.there.set_fault()
    pair.there.sandboxes()
    pair.here("checkpoint", "held", "--to", "stays", "--leave-running")
    before = len(pair.here.wait_lines("held", len(pair.here.lines("held")) + 20))
    report = pair.here.json("migrate", "held", "--to", "there")
    sizes = [row["bytes"] for row in report["rounds"]]
    # The other node has what came the first time, and what comes last is what was written since.
    assert sizes[0] > 256 << 20 and sizes[-1] < 32 << 20, sizes
    pair.there.wait_lines("held", before + 20)
    pair.here.restore("stays", "stayed")
    pair.here.wait_lines("stayed", 3)
    pair.go.touch()
    assert pair.there.wait_end("held")[-1] == pair.here.wait_end("stayed")[-1] == "ok"


class Wire:
    """What leads to a node, and can be cut and mended."""

    def __init__(self, port):
        self.to, self.streams, self.room = port, [], None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.is_whole = self.listener.getsockname()[1], True
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                stream, _ = self.listener.accept()
                if not self.is_whole:
                    stream.close()
                    continue
                try:
                    other = socket.create_connection(("127.0.0.1", self.to))
                except ConnectionRefusedError:
                    stream.close()
                    continue
                self.streams += [stream, other]
                for pair in ((stream, other), (other, stream)):
                    threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, from_, to):
        with contextlib.suppress(OSError):
            while piece := from_.recv(1 << 16):
                if self.room is not None:
                    piece = piece[: max(self.room, 0)]
                    self.room -= len(piece)
                to.sendall(piece)
                if self.room is not None and self.room <= 0:
                    self.cut()
        for stream in (from_, to):
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def cut_after(self, count):
        """In the middle of what comes, after so many bytes of it."""
        self.room = count

    def cut(self):
        self.is_whole = False
        for stream in self.streams:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def mend(self):
        self.is_whole, self.room = True, None


HANGS = ["node-begun", "node-round", "node-stopped", "node-sent", "node-ready", "node-held", "node-given", "node-told"]


class Wired(Pair):
    """Two nodes that are reached by a wire, and a daemon here that hangs where it is told to."""

    def __enter__(self):
        super().__enter__()
        self.wire = Wire(self.there.port)
        self.here.knows("there", self.there, self.wire.port)
        for node, points in ((self.here, HANGS), (self.there, ["arrival-accepted"])):
            node.set_fault(",".join(f"{point}:hang" for point in points))
            for point in points:
                node.let_go(point)
            node.sandboxes()
        return self

    def hangs_at(self, point):
        """A migration that does."""
        node = self.there if point.startswith("arrival") else self.here
        node.hold_again(point)
        moving = self.here.begin("migrate", "count", "--to", "there")
        node.reached(point)
        return moving

    def waits(self):
        """It stands still, and says why."""
        self.here.wait(lambda: "--take-back" in (self.here.sandbox("count")["problem"] or ""), "it to say that it waits")
        assert self.here.sandbox("count")["state"] == "migrating"


def test_the_link_is_cut():
    with Wired() as pair:
        for point in ("node-round", "node-sent", "node-ready", "node-given"):
            moving = pair.hangs_at(point)
            pair.wire.cut()
            pair.here.let_go(point)
            # It cannot know before it says so that nobody hears it any more, and has given the program away by then.
            if point in ("node-ready", "node-given"):
                pair.waits()
                with pytest.raises(CommandError, match="not known"):
                    pair.here("node", "rm", "there")
            if point == "node-ready":
                pair.wire.mend()
            if point == "node-given":
                assert pair.here.json("migrate", "count", "--take-back")["node"] == "there"
            with pytest.raises(CommandError, match="there"):
                moving.end()
            pair.wire.mend()
            pair.runs_at(pair.here)
        with pytest.raises(CommandError, match="waits for no other node"):
            pair.here("migrate", "count", "--take-back")
        moving = pair.hangs_at("arrival-accepted")
        pair.wire.cut()
        pair.there.let_go("arrival-accepted")
        pair.waits()
        # Whoever waits may die meanwhile: the program waits on.
        kill_daemon(pair.here)
        with pytest.raises(CommandError):
            moving.end()
        pair.waits()
        pair.wire.mend()
        pair.here.wait(lambda: pair.here.sandbox("count").get("node") == "there", "the answer")
        pair.end(pair.there)


def test_one_thing_at_a_time_which_can_be_cancelled_and_ends_with_the_program():
    with Wired() as pair:
        moving = pair.hangs_at("node-sent")
        for command in (("migrate", "count", "--to", "there"), ("checkpoint", "count", "--to", "image", "--stop")):
            with pytest.raises(CommandError, match="is migrating"):
                pair.here(*command)
        assert pair.here.json("images")["images"] == []
        moving.process.send_signal(signal.SIGINT)
        assert "cancelling" in moving.process.stderr.readline()
        pair.here.let_go("node-sent")
        with pytest.raises(CommandError, match="cancelled"):
            moving.end()
        pair.runs_at(pair.here)
        with pytest.raises(CommandError, match="migration:"):
            pair.here("checkpoint", "count", "--to", "migration:1", "--leave-running")
        moving = pair.hangs_at("node-ready")
        os.kill(pair.here.sandbox("count")["pid"], signal.SIGKILL)
        pair.here.let_go("node-ready")
        with pytest.raises(CommandError, match="ended"):
            moving.end()
        pair.here.wait_end("count")
        assert pair.here.sandbox("count")["state"] == "killed"
        for node in (pair.here, pair.there):
            node.wait(node.is_clean, "nothing to be left")
        assert pair.there.sandboxes() == []
