"""A running program moves to another node; whatever dies meanwhile, it goes on at one of the two, and no number is lost or repeated."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon

COUNTER = Path(__file__).parent / "nodes/counter.py"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


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
