"""Generations by the thousand: programs that change their memory at random are taken and brought back, again and again, and
know every byte of it each time.

    scripts/soak generations --count 20000 --seed 1 --jobs 16 --out report.json

Each chain is one program with all its generations, drawn from a seed of its own; `--first SEED --chains 1` runs one again.
Every job has a daemon, a state directory and a run directory of its own. It needs root, a C compiler, and Rekindle's binaries
(`make build`, or REKINDLE_TEST_BINARIES); CRIU is found as ever (REKINDLE_CRIU_DIR). It ends with 1 if anything failed.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import rekindle as driven  # noqa: E402
from generations import chain  # noqa: E402


def follow(given, program, seed, length):
    """One chain, with a daemon of its own: what a failed one leaves is no other's."""
    with driven.Rekindle(binaries=given.binaries) as rekindle:
        one = chain.Chain(rekindle, program, seed)
        failure = None
        try:
            one.begin()
            for _ in range(length):
                one.step()
            one.end()
        except Exception as error:
            failure = {"seed": seed, "generation": one.generation, "what": f"{type(error).__name__}: {error}"}
            failure["kept"] = keep(given, rekindle, seed)
        return one.generation - bool(failure), one.operations, failure


def keep(given, rekindle, seed):
    """Keeps what a failed chain has left, if a place was given."""
    if not given.keep:
        return None
    place = given.keep / str(seed)
    shutil.rmtree(place, ignore_errors=True)
    try:
        shutil.copytree(rekindle.state, place, symlinks=True, ignore=shutil.ignore_patterns("pages", "*.sock"))
    except (OSError, shutil.Error) as error:
        print(f"soak: not all of {rekindle.state} could be kept: {error}", file=sys.stderr)
    return str(place)


class Soak:
    """What was done so far."""

    def __init__(self, given):
        self.given = given
        self.generations = self.operations = self.chains = 0
        self.failures = []
        self.began = time.monotonic()

    def shares(self):
        """The seeds of the chains and how long each is to be, until enough were handed out."""
        given = self.given
        for at in range(given.chains or given.count):
            left = given.count - at * given.length
            is_late = given.seconds and time.monotonic() - self.began > given.seconds
            if left <= 0 or is_late or len(self.failures) >= given.most_failures:
                return
            yield given.seed + at, min(given.length, left)

    def run(self, program):
        """Each job is a process of its own: a fork of one thread would hold the pipes of another's chain open."""
        shares = self.shares()
        with multiprocessing.get_context("fork").Pool(self.given.jobs) as pool:
            under_way = [pool.apply_async(follow, (self.given, program, *share)) for share in itertools.islice(shares, self.given.jobs)]
            while under_way:
                over = [one for one in under_way if one.ready()]
                under_way = [one for one in under_way if one not in over]
                for one in over:
                    self.note(*one.get())
                    under_way += [pool.apply_async(follow, (self.given, program, *share)) for share in itertools.islice(shares, 1)]
                time.sleep(0 if over else 0.005)

    def note(self, generations, operations, failure):
        self.chains += 1
        self.generations += generations
        self.operations += operations
        if failure:
            self.failures.append(failure)
            print(f"soak: seed {failure['seed']}, generation {failure['generation']}: {failure['what']}", file=sys.stderr, flush=True)
        if self.chains % 10 == 0 or failure:
            self.write()
            print(f"soak: {self.generations} generations, {len(self.failures)} failures", flush=True)

    def report(self):
        return {
            "generations": self.generations,
            "operations": self.operations,
            "chains": self.chains,
            "seeds": [self.given.seed, self.given.seed + self.chains - 1],
            "length": self.given.length,
            "pages": chain.PAGES,
            "failures": self.failures,
            "seconds": round(time.monotonic() - self.began, 1),
            "jobs": self.given.jobs,
            "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        }

    def write(self):
        if self.given.out:
            text = json.dumps(self.report(), indent=1) + "\n"
            self.given.out.with_suffix(".new").write_text(text)
            self.given.out.with_suffix(".new").replace(self.given.out)


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
    soak = Soak(given)
    with tempfile.TemporaryDirectory(prefix="rekindle-soak-") as directory:
        soak.run(chain.build(directory))
    soak.write()
    print(json.dumps(soak.report(), indent=1))
    return 1 if soak.failures else 0
