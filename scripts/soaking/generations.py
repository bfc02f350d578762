"""Generations by the thousand: programs that change their memory at random are taken and brought back, again and again, and
know every byte of it each time.

    scripts/soak generations --count 20000 --seed 1 --jobs 16 --out report.json

Each chain is one program with all its generations, drawn from a seed of its own; `--first SEED --chains 1` runs one again.
Every job has a daemon, a state directory and a run directory of its own. It needs root, a C compiler, and Rekindle's binaries
(`make build`, or REKINDLE_TEST_BINARIES); CRIU is found as ever (REKINDLE_CRIU_DIR). It ends with 1 if anything failed.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import rekindle as driven  # noqa: E402
from generations import chain  # noqa: E402


class Soak:
    """What is to be done, and what was."""

    def __init__(self, options, program):
        self.options, self.program = options, program
        self.lock = threading.Lock()
        self.next = 0
        self.generations = self.operations = self.chains = 0
        self.failures = []
        self.began = time.monotonic()

    def take(self):
        """The next chain's seed and how long it is to be; none once enough are under way."""
        with self.lock:
            at, length = self.next, self.options.length
            left = self.options.count - at * length
            if left <= 0 or (self.options.chains and at >= self.options.chains):
                return None
            if self.options.seconds and time.monotonic() - self.began > self.options.seconds:
                return None
            if len(self.failures) >= self.options.most_failures:
                return None
            self.next += 1
            return self.options.seed + at, min(length, left)

    def work(self):
        while taken := self.take():
            seed, length = taken
            # A daemon for each chain: what a failed one leaves is no other's.
            with driven.Rekindle(binaries=self.options.binaries) as rekindle:
                self.follow(rekindle, seed, length)

    def follow(self, rekindle, seed, length):
        one = chain.Chain(rekindle, self.program, seed)
        failure = None
        try:
            one.begin()
            for _ in range(length):
                one.step()
            one.end()
        except Exception as error:
            failure = {"seed": seed, "generation": one.generation, "what": f"{type(error).__name__}: {error}"}
            failure["kept"] = self.keep(rekindle, seed)
        with self.lock:
            self.chains += 1
            self.generations += one.generation - bool(failure)
            self.operations += one.operations
            if failure:
                self.failures.append(failure)
                print(f"soak: seed {seed}, generation {one.generation}: {failure['what']}", file=sys.stderr, flush=True)
            if self.chains % 10 == 0 or failure:
                self.write()
                print(f"soak: {self.generations} generations, {len(self.failures)} failures", flush=True)

    def keep(self, rekindle, seed):
        """Keeps what a failed chain has left, if a place was given."""
        if not self.options.keep:
            return None
        place = self.options.keep / str(seed)
        shutil.rmtree(place, ignore_errors=True)
        try:
            shutil.copytree(rekindle.state, place, symlinks=True, ignore=shutil.ignore_patterns("pages", "*.sock"))
        except (OSError, shutil.Error) as error:
            print(f"soak: not all of {rekindle.state} could be kept: {error}", file=sys.stderr)
        return str(place)

    def report(self):
        seconds = time.monotonic() - self.began
        return {
            "generations": self.generations,
            "operations": self.operations,
            "chains": self.chains,
            "seeds": [self.options.seed, self.options.seed + self.next - 1],
            "length": self.options.length,
            "pages": chain.PAGES,
            "failures": self.failures,
            "seconds": round(seconds, 1),
            "jobs": self.options.jobs,
            "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        }

    def write(self):
        if self.options.out:
            text = json.dumps(self.report(), indent=1) + "\n"
            self.options.out.with_suffix(".new").write_text(text)
            self.options.out.with_suffix(".new").replace(self.options.out)


def options(arguments):
    one = argparse.ArgumentParser(prog="soak generations", description=__doc__.split("\n\n")[0])
    one.add_argument("--count", type=int, default=20000, help="how many generations in all (20000)")
    one.add_argument("--seed", "--first", type=int, default=1, help="the first chain's seed; the others follow (1)")
    one.add_argument("--length", type=int, default=50, help="generations of a chain (50)")
    one.add_argument("--chains", type=int, help="so many chains at most")
    one.add_argument("--jobs", type=int, default=os.cpu_count(), help="chains at once (one a processor)")
    one.add_argument("--seconds", type=float, help="no chain begins after so long")
    one.add_argument("--most-failures", type=int, default=20, help="no chain begins after so many failures (20)")
    one.add_argument("--binaries", type=Path, help="the directory of rekindle and rekindled")
    one.add_argument("--out", type=Path, help="where the report goes, while it goes on too")
    one.add_argument("--keep", type=Path, help="where what failed chains leave is kept")
    return one.parse_args(arguments)


def main(arguments):
    given = options(arguments)
    if not os.environ.get("REKINDLE_CRIU_DIR") and (ROOT / ".build/criu").is_dir():
        os.environ["REKINDLE_CRIU_DIR"] = str(ROOT / ".build/criu")
    with tempfile.TemporaryDirectory(prefix="rekindle-soak-") as directory:
        soak = Soak(given, chain.build(directory))
        workers = [threading.Thread(target=soak.work) for _ in range(given.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    soak.write()
    print(json.dumps(soak.report(), indent=1))
    return 1 if soak.failures else 0
