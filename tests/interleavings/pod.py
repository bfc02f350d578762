"""Containers of Podman's, whose programs lie on the host and are mounted into them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rekindle import ROOT

CRIU = ROOT / ".build/criu"
# As much as a machine may allow that does not give its containers more than it has itself.
LIMITS = ["--network=none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]


def podman(*words, check=True):
    environment = dict(os.environ, PATH=f"{CRIU}:{os.environ['PATH']}:/usr/sbin:/sbin")
    done = subprocess.run(["podman", *map(str, words)], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode:
        raise OSError(f"podman {words[:2]}: {done.stderr.strip()}")
    return done.stdout


class Pods:
    """An image with directories alone, and containers of it that end with this. Raises OSError where Podman cannot do that."""

    def __init__(self, shared):
        self.image, self.shared = f"localhost/rekindle-kills-{os.getpid()}", shared
        self.names = set()
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory) / "root"
            for name in ["dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"]:
                (root / name).mkdir(parents=True)
            for name in ["bin", "lib", "lib64", "sbin"]:
                (root / name).symlink_to(f"usr/{name}")
            archive = Path(directory) / "root.tar"
            subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
            podman("import", archive, self.image)

    def probe(self):
        name = f"rekindle-kills-{os.getpid()}-probe"
        self.start(name, ["/bin/sleep", "1000"])
        podman("container", "checkpoint", name)
        podman("container", "restore", name)
        self.remove(name)

    def start(self, name, words, variables=()):
        """The program finds the same files as here: those of the system, of this repository, and what is shared."""
        self.names.add(name)
        places = {"/usr", sys.base_prefix, sys.prefix, os.path.realpath(sys.prefix), str(ROOT), *map(str, self.shared)}
        volumes = [word for place in sorted(places) for word in ("--volume", f"{place}:{place}")]
        settings = [word for variable in dict(variables).items() for word in ("--env", "=".join(variable))]
        options = ["--detach", "--name", name, *LIMITS, *volumes, *settings]
        podman("--runtime", "runc", "run", *options, self.image, *words)

    def root(self, name):
        """Its first process; 0 of one that does not run."""
        said = podman("inspect", "--type", "container", name, check=False)
        state = (json.loads(said or "[]") or [{"State": {}}])[0]["State"]
        return state.get("Pid", 0) if state.get("Status") == "running" else 0

    def remove(self, name):
        podman("rm", "--force", "--time", "0", name, check=False)

    def end(self):
        for name in self.names:
            self.remove(name)
        podman("rmi", "--force", self.image, check=False)
