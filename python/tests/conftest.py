"""Fixtures: a Rekindle of one's own, which the package finds too. How it is driven lies beside the tests of programs."""

import contextlib
import gc
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
APPS = Path(__file__).parent / "apps"


def load(name, file):
    """What tests of programs have, by a name of its own: `tests/rekindle.py` has the package's."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


load("harness", "rekindle.py")
load("collector", "collector.py")


# All that is collected stays until the end: nobody needs to look again and again whether it is garbage.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def begun(**environment):
    """Services go first: they would bring up again what is ended."""
    from harness import Rekindle

    given = {"REKINDLE_DATA_FILES": tempfile.gettempdir()} | environment
    given = {name: value for name, value in given.items() if value is not None}
    with Rekindle(**given) as instance, pytest.MonkeyPatch.context() as patch:
        # The package may be who starts the next daemon. Faults are of the first one.
        for name in ("REKINDLE_SOCKET", "REKINDLE_STATE", "REKINDLE_RUN_ROOT", "REKINDLE_DATA_FILES"):
            if name in instance.environment:
                patch.setenv(name, instance.environment[name])
        patch.setenv("REKINDLE_COMMAND", instance.command)
        patch.delenv("PYTHONUNBUFFERED", raising=False)
        try:
            yield instance
        finally:
            for mark in instance.root.rglob("*.held"):
                mark.with_suffix(".go").touch()
            listed = instance.json("services")
            for one in (*listed["workflows"], *listed["services"]):
                instance("unserve", one["name"], "--tenant", one["tenant"] or "none", "--now")


@pytest.fixture
def rekindle():
    with begun() as instance:
        yield instance


class Deployer:
    """Writes app files, and deploys them."""

    def __init__(self, rekindle):
        self.rekindle = rekindle
        self.directory = rekindle.root / "apps"
        self.directory.mkdir()

    def write(self, name, source):
        file = self.directory / f"{name}.py"
        file.write_text(f"import os, time\nfrom pathlib import Path\nimport rekindle\napp = rekindle.App({name!r})\n{source}")
        return file

    def __call__(self, file):
        return self.rekindle.json("deploy", file, "--python", sys.executable)

    def app(self, name, source):
        return self(self.write(name, source))

    def service(self, name):
        return next(row for row in self.rekindle.json("services")["services"] if row["name"] == name)

    def come_to(self, name, *stages):
        shown = lambda: sorted(one["stage"] for one in self.service(name)["instances"])
        self.rekindle.wait(lambda: shown() == sorted(stages), f"instances {stages} of {name}")

    def mark(self, name):
        return str(self.rekindle.root / name)

    def held(self, name):
        """Waits until a call is in its instance's hands."""
        self.rekindle.wait(lambda: os.path.exists(f"{self.mark(name)}.held"), f"{name} to be held")

    def let_go(self, name):
        Path(f"{self.mark(name)}.go").touch()


@pytest.fixture
def deploy(rekindle):
    return Deployer(rekindle)


@pytest.fixture(scope="module")
def calls():
    """The app of `apps/calls.py`, deployed once for tests that change nothing."""
    with begun() as instance:
        deployer = Deployer(instance)
        deployer(APPS / "calls.py")
        yield deployer
