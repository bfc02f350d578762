"""What all ways are given, and the results, which are written as they come."""

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import catalogue
import load
import machine
import summary
from fetch import fetch

HERE = Path(__file__).resolve().parent
# Seconds that an answer is waited for after the last request was due, and that are left for what follows a replay.
PATIENCE, AFTER = 30, 10


class Bench:
    """Functions that are made ready, a load, and runs of it."""

    def __init__(self, given, instance, store, work, objects):
        self.given, self.instance, self.store, self.work, self.objects = given, instance, store, work, objects
        self.began = time.monotonic()
        self.programs = machine.Programs(instance, given.gpu, work)
        entries = catalogue.entries(given.gpu)
        self.entries = {name: entries[name] for name in entries if name in (given.only or [*entries][: given.functions])}
        self.rows = {}
        # Of other runs of the benchmark; one of the same label is replaced.
        self.before = [run for run in json.loads(given.out.read_text()) if run["label"] != given.label] if given.out.exists() else []
        self.memory = machine.GpuMemory(self.programs.is_native)
        self.results = {"label": given.label, "gpu": given.gpu, "machine": described(given.gpu), "left_out": {}, "prepared": {}, "runs": {}}

    def left(self):
        return self.given.budget - (time.monotonic() - self.began)

    def say(self, text):
        print(f"{time.monotonic() - self.began:6.1f} {text}", file=sys.stderr, flush=True)

    def save(self):
        part = self.given.out.with_suffix(".part")
        part.write_text(summary.document([*self.before, self.results]) + "\n")
        part.rename(self.given.out)

    def prepare(self):
        """Objects and reference answers; the ones that are not there in a third of the budget are left out."""
        catalogue.compile_kernels(self.work / "kernels", self.given.gpu)
        waiting = [*reversed(self.entries)]
        running, end = [], self.began + self.given.budget / 3
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < self.given.together:
                name = waiting.pop(0)
                self.programs.start(f"make-{name}", [sys.executable, HERE / "prepare.py", name, self.given.gpu, self.work, self.objects])
                running.append(name)
            for name in [name for name in running if self.programs.ended(f"make-{name}")]:
                running.remove(name)
                file = self.work / f"{name}.json"
                if not file.exists():
                    self.results["left_out"][name] = self.programs.said(f"make-{name}")
                    continue
                more = {"url": self.store.url(name), "file": str(self.objects / name), "most": self.entries[name].most}
                self.rows[name] = json.loads(file.read_text()) | more
                file.write_text(json.dumps(self.rows[name]))
                self.say(f"{name}: {self.rows[name]['bytes'] / 1e6:.1f} MB")
            time.sleep(0.1)
        for name in [*running, *waiting]:
            self.results["left_out"][name] = "its object was not made in time"
        self.programs.end()
        self.rows = {name: self.rows[name] for name in self.entries if name in self.rows}
        shown = ("bytes", "gpu_bytes", "compute_s", "answers", "tolerance", "apart", "most")
        self.results["prepared"] = {name: {key: row[key] for key in shown} for name, row in self.rows.items()}
        self.save()

    def measure_store(self):
        """What one client gets of the store, bytes a second, which the ways have too."""
        name = max(self.rows, key=lambda one: self.rows[one]["bytes"] if self.rows[one]["bytes"] < 4e9 else 0)
        start = time.perf_counter()
        fetch(self.rows[name]["url"], self.rows[name]["bytes"])
        seconds = time.perf_counter() - start
        limit = self.given.gbps * 1e9 / 8
        self.results["store"] = {"limit": limit, "one_client": self.rows[name]["bytes"] / seconds}

    def run(self, label, call):
        """The replay and the closed loop of one way; what goes wrong is in the results."""
        given = self.given
        if self.left() < given.seconds + given.peak + AFTER:
            self.results["left_out"][label] = "there was no time for it"
            return
        mark, given_before, run = len(self.memory.values), self.store.given(), {"load": os.getloadavg()[0]}
        rows = load.open_loop(self.rows, self.load, call, min(PATIENCE, max(1.0, self.left() - given.seconds - given.peak)))
        run["requests"] = rows
        run["summary"] = summary.of_run(rows)
        # All began with nothing; what is left of that in the second half is how they go on.
        run["later"] = summary.of_requests([row for row in rows if row["due"] >= given.seconds / 2])
        if self.left() > given.peak:
            run["peak"] = load.closed_loop(self.rows, [*self.rows], call, 2 * len(self.rows), given.peak, min(AFTER, max(1.0, self.left())))
        run["fetched_bytes"] = self.store.given() - given_before
        run["gpu_memory"] = self.memory.since(mark)
        self.results["runs"][label] = run
        whole = run["summary"]["all"]
        self.say(
            f"{label}: {whole['requests']} requests, {whole['wrong']} wrong, {whole['failed']} failed, mean {summary.milliseconds(whole['mean'])} ms"
        )
        self.save()


def described(gpu):
    row = {"kernel": platform.release(), "cores": os.cpu_count(), "python": platform.python_version()}
    row["time"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if not gpu.startswith("emulated"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        with contextlib.suppress(OSError):
            row["gpu"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return row
