"""Servers of PyPI, in a virtual environment of their own."""

import contextlib
import http.client
import itertools
import json
import subprocess
import threading
from pathlib import Path

from kinds import PATIENCE, Server

TENSORFLOW = Path(__file__).with_name("tensorflow_app.py")


class Asker:
    """Asks over a connection for each question: some of them close it themselves."""

    def __init__(self, port):
        self.port = port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, path, body=None):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            words = {"Content-Type": "application/json"} if body else {}
            connection.request("POST" if body else "GET", path, body and json.dumps(body), words)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != http.client.OK:
            raise OSError(f"{answer.status}: {content[:200]}")
        return content


class Package(Server):
    """Most count nothing."""

    connect = Asker
    # Where the environment has its programs.
    environment = Path("bin")

    @classmethod
    def program(cls):
        found = cls.environment / cls.command
        return found if found.exists() else None

    @classmethod
    def version(cls):
        asked = f"import importlib.metadata; print(importlib.metadata.version({cls.package!r}))"
        return subprocess.run([cls.environment / "python", "-c", asked], capture_output=True, text=True, check=True).stdout.strip()

    def words(self):
        return ["/usr/bin/env", f"HOME={self.place}", self.program(), *self.options()]

    def ask(self, line):
        line.ask(self.path)


class TensorFlow(Package):
    """Each request is a step of training, whose number is a variable."""

    command, package = "python", "tensorflow-cpu"

    def options(self):
        return [TENSORFLOW, self.port]

    def ask(self, line):
        return json.loads(line.ask("/"))["step"]


class TensorBoard(Package):
    command, package, path = "tensorboard", "tensorboard", "/data/runs"

    def options(self):
        return ["--logdir", self.place, "--port", self.port, "--host", "127.0.0.1"]


class Streamlit(Package):
    command, package, path = "streamlit", "streamlit", "/_stcore/health"

    def options(self):
        (self.place / "app.py").write_text("import streamlit\n\nstreamlit.write('hello')\n")
        options = {"server.port": self.port, "server.headless": "true", "browser.gatherUsageStats": "false"}
        return ["run", self.place / "app.py", *itertools.chain(*((f"--{name}", value) for name, value in options.items()))]


class Chroma(Package):
    command, package, path = "chroma", "chromadb", "/api/v2/heartbeat"

    def options(self):
        return ["run", "--path", self.place / "data", "--host", "127.0.0.1", "--port", self.port]


class MLflow(Package):
    """Thirteen processes, and a database in a file. Experiments are numbered."""

    command, package = "mlflow", "mlflow"
    names, one = itertools.count(), threading.Lock()

    def options(self):
        store = ["--backend-store-uri", f"sqlite:///{self.place}/database", "--artifacts-destination", self.place]
        return ["server", "--host", "127.0.0.1", "--port", self.port, *store]

    def ask(self, line):
        with self.one:
            made = line.ask("/api/2.0/mlflow/experiments/create", {"name": f"number {next(self.names)}"})
        return int(json.loads(made)["experiment_id"])
