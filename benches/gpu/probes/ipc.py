"""Tries CUDA IPC on a real GPU, beside the driver's own: a short line for each check, and never more than some minutes.

    python benches/gpu/probes/ipc.py [--gpu nvidia] [--python PYTHON-WITH-TORCH]

- The codes that functions return: without Rekindle and in a sandbox, which should be the same (`tests/ipc/codes.py`).
- A relay of three processes by memory and events (`tests/ipc/relay.py`), over checkpoint and restore, `--leave-running`, and
  sleep at each level.
- torch's tensors in queues (`ipc_torch.py`), the same.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROBES = Path(__file__).parent
# How long anything may take, in seconds.
PATIENCE = 60


class Rekindle:
    def __init__(self, gpu):
        self.gpu, self.root = gpu, Path(tempfile.mkdtemp(prefix="rekindle-ipc-"))
        self.environment = dict(os.environ, REKINDLE_SOCKET=str(self.root / "socket"), REKINDLE_STATE=str(self.root / "state"))

    def __call__(self, *words):
        command = [ROOT / "target/release/rekindle", *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise RuntimeError(f"rekindle {words[0]}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def lines(self, name):
        lines = self("logs", name).split("\n")[:-1]
        marks = [at for at, line in enumerate(lines) if line.startswith("--- rekindle: restored")]
        return [line for line in (lines[marks[-1] + 1 :] if marks else lines) if line[:1].isdigit()]

    def more(self, name, count=5):
        """Waits for some more lines; all of this run."""
        before, began = len(self.lines(name)), time.monotonic()
        while len(self.lines(name)) < before + count:
            if time.monotonic() - began > PATIENCE:
                raise RuntimeError(f"no more lines: {self('logs', name)[-300:]}")
            time.sleep(0.1)
        return self.lines(name)


def check(what, attempt):
    began = time.monotonic()
    try:
        said = attempt() or "ok"
    except Exception as error:
        said = f"FAILED: {error}"
    print(f"{what}: {said} ({time.monotonic() - began:.1f} s)", flush=True)


def codes(rekindle):
    script = ROOT / "tests/ipc/codes.py"
    own = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE)
    ours = rekindle("run", "--name", "codes", "--gpu", rekindle.gpu, "--", sys.executable, script)
    read = lambda text: dict(line.split(" ", 1) for line in text.splitlines() if " " in line)  # noqa: E731
    own, ours = read(own.stdout), read(ours)
    own.pop("handle", None)
    ours.pop("handle", None)
    keys = sorted({*own, *ours})
    other = [f"{key}: driver {own.get(key)}, here {ours.get(key)}" for key in keys if own.get(key) != ours.get(key)]
    return "; ".join(other) if other else f"all {len(keys)} the same"


class Program:
    """A program that prints a step a line, and checks itself or is compared with an earlier run."""

    def __init__(self, rekindle, name, *command):
        self.rekindle, self.name, self.command, self.known = rekindle, name, command, {}

    def look(self, name):
        for line in self.rekindle.more(name):
            step, found = line.split(" ", 1)
            assert "wrong" not in found and self.known.setdefault(step, found) == found, line

    def run(self):
        self.rekindle("run", "-d", "--name", self.name, "--gpu", self.rekindle.gpu, "--", *self.command)
        self.look(self.name)

    def image(self):
        self.rekindle("checkpoint", self.name, "--to", f"{self.name}-1", "--leave-running")
        self.look(self.name)
        report = json.loads(self.rekindle("checkpoint", self.name, "--to", f"{self.name}-2", "--stop", "--json"))
        return f"stood still for {report['stopped_us'] / 1000:.0f} ms"

    def restore(self):
        self.rekindle("restore", f"{self.name}-2", "--name", f"{self.name}-b", "-d", "--gpu", self.rekindle.gpu)
        self.look(f"{self.name}-b")

    def sleep(self, level):
        self.rekindle("sleep", f"{self.name}-b", "--level", level)
        self.look(f"{self.name}-b")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="nvidia")
    parser.add_argument("--python", default=sys.executable)
    wanted = parser.parse_args()
    rekindle = Rekindle(wanted.gpu)
    check("codes", lambda: codes(rekindle))
    relay = Program(rekindle, "relay", sys.executable, ROOT / "tests/ipc/relay.py", 3)
    torch = Program(rekindle, "torch", wanted.python, PROBES / "ipc_torch.py")
    for program in (relay, torch):
        check(f"{program.name}: run", program.run)
        check(f"{program.name}: checkpoint", program.image)
        check(f"{program.name}: restore", program.restore)
        for level in ("gpu", "host", "disk"):
            check(f"{program.name}: sleep at {level}", lambda program=program, level=level: program.sleep(level))
        check(f"{program.name}: end", lambda program=program: rekindle("kill", f"{program.name}-b") and None)
    rekindle("shutdown")


main()
