"""Programs of PyPI that nobody here wrote, each with a GPU behind it: under load while its image is taken, killed, and brought back."""

import ast
import contextlib
import http.client
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from dask.distributed import Client
from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from rekindle import PATIENCE, Rekindle

SOFTWARE = Path(__file__).parent / "software"
PORT = 8000
ASKERS = 4
# How many answers each asker has before and after the image.
SOME = 5
# What a program says beside its count.
SUM = sum(number * number for number in range(1000))


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """Clients of some of them have the same modules."""
    monkeypatch.syspath_prepend(SOFTWARE)


def get(port, method="GET", path="/", body=None):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{answer.status}: {content[:200]}")
        return json.loads(content)


def predict(port):
    return get(port, "POST", "/predict", b"{}")


def call(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return json.loads(channel.unary_unary("/counter.Counter/Next")(b"", timeout=PATIENCE))


def submit(port):
    import dask_app

    with Client(f"tcp://127.0.0.1:{port}", timeout=PATIENCE) as client:
        return client.submit(dask_app.answer, pure=False).result(PATIENCE)


def module(*words):
    return (sys.executable, "-m", *words)


def script(name):
    return (sys.executable, name, PORT)


BIND = f"0.0.0.0:{PORT}"
SERVERS = {
    "FastAPI by uvicorn": (script("fastapi_app.py"), get),
    "Flask by gunicorn": (module("gunicorn", "-w", 1, "--threads", 4, "-b", BIND, "flask_app:app"), get),
    "Flask by waitress": (module("waitress", f"--listen={BIND}", "flask_app:app"), get),
    "FastAPI by gunicorn's uvicorn workers": (module("gunicorn", "-w", 1, "-k", "uvicorn.workers.UvicornWorker", "-b", BIND, "fastapi_app:app"), get),
    "aiohttp": (script("aiohttp_app.py"), get),
    "gRPC": (script("grpc_app.py"), call),
    "Sanic": (script("sanic_app.py"), get),
    "LitServe": (script("litserve_app.py"), predict),
    "Dask": (script("dask_app.py"), submit),
}


def comes_back(before, after, asked):
    """What it says after a restore goes on from a moment between two answers of the program that was imaged."""
    back, again = asked(), asked()
    # Requests that were under way when the image was taken are done by the restored program too.
    assert before["count"] < back["count"] <= after["count"] + ASKERS, (before, back, after)
    assert 1 <= again["count"] - back["count"] <= 1 + ASKERS and again["sum"] == SUM, (back, again)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_under_load_is_imaged_without_a_failed_request_and_comes_back(name):
    command, ask = SERVERS[name]
    with Rekindle() as rekindle, ThreadPoolExecutor(ASKERS) as askers:
        options = ("--gpu", rekindle.gpu, "--network", "private", "-p", f"0:{PORT}")
        rekindle("run", "-d", "--name", "served", *options, "--workdir", SOFTWARE, "--", *command)
        port = published(rekindle, "served")
        rekindle.wait(lambda: answers(ask, port), f"an answer of {name}")
        stop, warm = threading.Event(), threading.Barrier(ASKERS + 1)

        def load():
            for _ in range(SOME):
                ask(port)
            warm.wait(PATIENCE)
            # Others ask meanwhile, and tests have few processors between them.
            while not stop.wait(0.01):
                ask(port)
            return [ask(port)["sum"] for _ in range(SOME)]

        loads = [askers.submit(load) for _ in range(ASKERS)]
        warm.wait(PATIENCE)
        before = ask(port)
        rekindle("checkpoint", "served", "--to", "image", "--leave-running")
        after = ask(port)
        stop.set()
        assert all(sums == [SUM] * SOME for sums in (load.result(PATIENCE) for load in loads))
        rekindle("kill", "served")
        rekindle("restore", "image", "--name", "again", "--gpu", rekindle.gpu, "-d")
        port = published(rekindle, "again")
        comes_back(before, after, lambda: ask(port))


def test_a_server_of_several_gpu_processes_comes_back_with_what_each_knows():
    command = module("gunicorn", "-w", 2, "-b", BIND, "flask_app:app")
    with Rekindle() as rekindle, ThreadPoolExecutor(ASKERS) as askers:
        options = ("--gpu", rekindle.gpu, "--network", "private", "-p", f"0:{PORT}")
        rekindle("run", "-d", "--name", "served", *options, "--workdir", SOFTWARE, "--", *command)
        port = published(rekindle, "served")
        rekindle.wait(lambda: answers(get, port), "an answer")

        def counts(port):
            """The counts that each process has told, until both have."""
            told = {}
            while len(told) < 2:
                for answer in askers.map(lambda _: get(port), range(ASKERS)):
                    assert answer["sum"] == SUM
                    told.setdefault(answer["process"], []).append(answer["count"])
            return told

        counts(port)
        stop = threading.Event()

        def load():
            while not stop.wait(0.01):
                assert get(port)["sum"] == SUM

        loads = [askers.submit(load) for _ in range(ASKERS // 2)]
        report = rekindle.json("checkpoint", "served", "--to", "one", "--leave-running")
        assert report["gpu_processes"] == 2
        stop.set()
        for load in loads:
            load.result(PATIENCE)
        before = counts(port)
        rekindle("checkpoint", "served", "--to", "two", "--stop")
        rekindle("restore", "two", "--name", "again", "--gpu", rekindle.gpu, "-d")
        back = counts(published(rekindle, "again"))
        assert {process: min(told) for process, told in back.items()} == {process: max(told) + 1 for process, told in before.items()}


def published(rekindle, name):
    return rekindle.sandbox(name)["ports"][0]["port"]


def answers(ask, port):
    """Whether it listens by now."""
    try:
        return ask(port)["sum"] == SUM
    except (OSError, http.client.HTTPException, RuntimeError, grpc.RpcError):
        return False


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_workers_of_celery_come_back_with_what_they_know(pool, tmp_path, monkeypatch):
    monkeypatch.setenv("CELERY_PLACE", str(tmp_path))
    monkeypatch.delitem(sys.modules, "celery_app", raising=False)
    import celery_app

    def ask():
        return celery_app.answer.delay().get(timeout=PATIENCE)

    with Rekindle(PYTHONPATH=str(SOFTWARE)) as rekindle:
        rekindle.run("worker", *module("celery", "-A", "celery_app", "worker", "--pool", pool, "-c", 1, "-l", "WARNING"))
        ask()
        before = ask()
        rekindle("checkpoint", "worker", "--to", "image", "--leave-running")
        after = ask()
        rekindle("kill", "worker")
        rekindle.restore("image", "again")
        comes_back(before, after, ask)


def test_a_jupyter_kernel_comes_back_with_its_variables(tmp_path):
    file, _ = write_connection_file(str(tmp_path / "connection.json"))
    with Rekindle(PYTHONPATH=str(SOFTWARE)) as rekindle:
        rekindle.run("kernel", *module("ipykernel_launcher", "-f", file))
        with notebook(file) as run:
            run("from counter import Counter; counter = Counter()")
            before = run(value="counter.next()")
            rekindle("checkpoint", "kernel", "--to", "image", "--leave-running")
            after = run(value="counter.next()")
        rekindle("kill", "kernel")
        rekindle.restore("image", "again")
        with notebook(file) as run:
            comes_back(before, after, lambda: run(value="counter.next()"))


@contextlib.contextmanager
def notebook(file):
    """Runs cells of a notebook, and says what an expression is after each."""
    client = BlockingKernelClient(connection_file=file)
    client.load_connection_file()
    # A kernel of a busy machine is not dead after a second.
    client.hb_channel.time_to_dead = PATIENCE
    client.start_channels()

    def run(cell="", value="None"):
        # The answer has it. What is printed goes to whoever listens by then.
        answer = client.execute(cell, user_expressions={"value": value}, reply=True, timeout=PATIENCE)["content"]
        assert answer["status"] == "ok", answer
        return ast.literal_eval(answer["user_expressions"]["value"]["data"]["text/plain"])

    try:
        client.wait_for_ready(timeout=PATIENCE)
        yield run
    finally:
        client.stop_channels()
