"""How long it takes until programs with much GPU memory run again, and answer; builds are compared in turn.

    benches/gpu/probes/large_images.py --bin NAME=DIR [--bin NAME=DIR ...] --out results.json [--programs NAME ...] [--restores 4]

Services of the benchmark's workloads are imaged by the first build. Each build restores that image so many times, a second and more
after the program before has ended and with a worker that waits; then the first build does so again. Needs a real GPU. Seconds.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benches"), str(ROOT / "benches/gpu")]

import raw  # noqa: E402
from images import ask, memory_directory, wait_for_worker  # noqa: E402
from programs import start_service  # noqa: E402
from rekindle import Rekindle  # noqa: E402

PROGRAMS = ["gpt2-large", "llama-20gb"]
PAUSE_S = 1.2


def restores(rekindle, image, trigger, count, expected):
    """Each until the program runs, and until it has answered."""
    found = []
    for _ in range(count):
        wait_for_worker(rekindle)
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        report = rekindle.restore(image, "restored")
        running = time.perf_counter() - began
        answer = ask(trigger)[1]
        first = time.perf_counter() - began
        row = {"total_s": report["total_us"] / 1e6, "running_s": running, "first_answer_s": first, "same": answer == expected}
        found.append({**row, "phases": report["phases"]})
        rekindle("kill", "restored")
        rekindle("rm", "restored")
    return found


def row(builds, name, count, memory, work):
    state, trigger, found = memory / name, work / f"{name}-ask", {}
    (first, binaries), *others = builds.items()
    with Rekindle("nvidia", binaries=binaries, state=state) as rekindle:
        start_service(rekindle, "service", name, trigger)
        expected = ask(trigger)[1]
        rekindle("checkpoint", "service", "--to", "image", "--stop")
        found[first] = restores(rekindle, "image", trigger, count, expected)
    for build, directory in [*others, (f"{first} again", binaries)] if others else []:
        with Rekindle("nvidia", binaries=directory, state=state) as rekindle:
            found[build] = restores(rekindle, "image", trigger, count, expected)
    for build, rows in found.items():
        times = [statistics.median(one[key] for one in rows) * 1e3 for key in ("total_s", "first_answer_s")]
        print(f"{name}, {build}: runs after {times[0]:.0f} ms, has answered after {times[1]:.0f}", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--programs", nargs="+", default=PROGRAMS)
    parser.add_argument("--restores", type=int, default=4)
    given = parser.parse_args()
    builds = {name: Path(directory) for name, directory in (one.split("=", 1) for one in given.bin)}
    with memory_directory() as (memory, _), tempfile.TemporaryDirectory() as work:
        rows = {name: row(builds, name, given.restores, memory, Path(work)) for name in given.programs}
    given.out.write_text(raw.document({"rows": rows}))


if __name__ == "__main__":
    main()
