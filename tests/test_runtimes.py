"""Servers in other languages than Python: under load while images are taken, and brought back, two generations of them."""

import contextlib
import http.client
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from rekindle import PATIENCE, free_port

SOURCES = Path(__file__).parent / "runtimes"
ASKERS = 3
# Answers before the first image, and of each generation.
SOME = 30


def go(place):
    subprocess.run(["go", "build", "-o", place / "counter", SOURCES / "counter.go"], check=True)
    return [place / "counter"]


def java(place):
    subprocess.run(["javac", "-d", place, SOURCES / "Counter.java"], check=True)
    return [shutil.which("java"), "-cp", place, "Counter"]


def node(place):
    return [shutil.which("node"), SOURCES / "counter.mjs"]


def ask(port):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", "/")
        return int(connection.getresponse().read())


@contextlib.contextmanager
def load(port):
    """Clients that ask one after the other; what has failed, once they have ended."""
    over, failures = threading.Event(), []

    def client():
        while not over.is_set():
            try:
                ask(port)
            except (OSError, http.client.HTTPException, ValueError) as failure:
                failures.append(failure)

    clients = [threading.Thread(target=client) for _ in range(ASKERS)]
    for one in clients:
        one.start()
    try:
        yield failures
    finally:
        over.set()
        for one in clients:
            one.join()


@pytest.mark.parametrize("made", [go, java, node], ids=lambda made: made.__name__)
def test_a_server_under_load_is_imaged_without_a_failed_request_and_comes_back(rekindle, tmp_path, made):
    if not shutil.which(made.__name__):
        pytest.skip(f"{made.__name__} is not here")
    port = free_port()
    rekindle("run", "-d", "--name", "first", "--", *made(tmp_path), port)

    def listens():
        with contextlib.suppress(OSError):
            return ask(port)

    rekindle.wait(listens, "the server to listen")
    with load(port) as failures:
        for number in range(2):
            enough = ask(port) + SOME
            rekindle.wait(lambda enough=enough: ask(port) >= enough, "more answers")
            rekindle("checkpoint", "first", "--to", f"going-{number}", "--leave-running")
    assert not failures
    name = "first"
    for generation in range(2):
        count = ask(port)
        rekindle("checkpoint", name, "--to", f"image-{generation}", "--stop")
        name = f"again-{generation}"
        rekindle.restore(f"image-{generation}", name)
        assert [ask(port) for _ in range(SOME)] == [count + 1 + more for more in range(SOME)]
        with load(port) as failures:
            rekindle("checkpoint", name, "--to", f"going-again-{generation}", "--leave-running")
        assert not failures
