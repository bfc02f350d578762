"""Containers of Podman's with several processes that use a GPU of Rekindle's: one image has them all."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from rekindle import ROOT, CommandError, Rekindle, criu
from test_processes import COUNTERS, Scene

CRIU = os.environ.get("REKINDLE_CRIU_DIR") or ROOT / ".build/criu"
# What a machine may allow that does not give its containers more than it has itself.
LIMITS = ("--network=none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")

pytestmark = pytest.mark.skipif(
    not shutil.which("podman") or not shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin"), reason="Podman and runc are not here"
)


def podman(*words, check=True, told=False):
    """What it prints; with `told`, also what goes to standard error."""
    environment = dict(os.environ, PATH=f"{CRIU}:{os.environ['PATH']}:/usr/sbin:/sbin")
    done = subprocess.run(["podman", *map(str, words)], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if check and done.returncode:
        raise RuntimeError(f"podman {words}: {done.stderr}")
    return done.stdout + (done.stderr if told else "")


def remains(name):
    """How a container stands, and what it has printed and written."""
    state = podman("inspect", "--format", "{{json .State}}", name, check=False)
    with tempfile.TemporaryDirectory() as directory:
        podman("cp", f"{name}:/count", directory, check=False)
        written = "".join(path.read_text() for path in Path(directory).iterdir())
    return f"{state}\n{podman('logs', name, check=False, told=True)}\n{written}"


class Counters(Scene):
    """Counters in a container, which write what they come to into its own root file system."""

    @contextlib.contextmanager
    def begun(self, name):
        image, root = f"localhost/{name}", self.rekindle.root / "container"
        for place in ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"):
            (root / place).mkdir(parents=True)
        for place in ("bin", "lib", "lib64", "sbin"):
            (root / place).symlink_to(f"usr/{place}")
        subprocess.run(["tar", "-C", root, "-cf", f"{root}.tar", "."], check=True)
        device = self.rekindle.json("device", name, "--gpu", self.rekindle.gpu)
        try:
            podman("import", f"{root}.tar", image)
            programs = COUNTERS.parent
            script = f"exec python3 {COUNTERS} {self.processes} >> /count"
            volumes = ("--volume", "/usr:/usr:ro", "--volume", f"{programs}:{programs}:ro")
            options = ("-d", "--name", name, "--device", device["device"], *volumes, *LIMITS)
            podman("--runtime", "runc", "run", *options, image, "/bin/sh", "-c", script)
            self.goes_on(name)
            yield
        finally:
            podman("rm", "--force", "--time", "0", name, check=False)
            podman("rmi", image, check=False)
            Path(device["description"]).unlink(missing_ok=True)

    def lines(self, name):
        try:
            return podman("exec", name, "/bin/cat", "/count").split("\n")[:-1]
        except RuntimeError as error:
            raise AssertionError(f"{error}\n{remains(name)}") from None

    def steps(self, name):
        self.rekindle, own = Lines(self), self.rekindle
        try:
            return super().steps(name)
        finally:
            self.rekindle = own


class Lines:
    """What the counters' container has written stands for their log."""

    def __init__(self, counters):
        self.lines = counters.lines


@pytest.fixture
def name():
    return f"rekindle-test-processes-{os.getpid()}"


def test_all_are_in_the_image_of_a_container(name):
    with Rekindle(**criu()) as rekindle:
        scene = Counters(rekindle)
        with scene.begun(name):
            report = rekindle.json("checkpoint", "--container", name, "--to", "going", "--leave-running")
            assert (report["gpu_processes"], report["warnings"]) == (2, [])
            scene.goes_on(name)
            assert rekindle.json("checkpoint", "--container", name, "--to", "x", "--stop")["gpu_processes"] == 2
            podman("rm", name)
            rekindle("restore", "x")
            # None of what they have written is missing, and they go on from there.
            scene.goes_on(name)
            rekindle("verify", "x")


@pytest.mark.parametrize("after", ["--stop", "--leave-running"])
def test_a_worker_that_dies_in_a_checkpoint_of_a_container_leaves_the_others(name, after):
    with Rekindle(REKINDLE_FAULT="quiesced:hang", **criu()) as rekindle:
        scene = Counters(rekindle)
        with scene.begun(name):
            checkpoint = rekindle.begin("checkpoint", "--container", name, "--to", "x", after)
            rekindle.reached("quiesced")
            os.kill(rekindle.sandbox(name)["workers"][1], signal.SIGKILL)
            rekindle.let_go("quiesced")
            with pytest.raises(CommandError):
                checkpoint.end()
            assert rekindle.json("images")["images"] == []
            rekindle.wait(lambda: any("failed" in line for line in scene.lines(name)), "what its process sees")
            scene.goes_on(name, [0])
