"""numba-cuda's own test suite, from its wheel, on the emulated GPU: each module in a sandbox of its own.

    python tests/numba_suite/run.py [--jobs N] [--limit SECONDS]
    python tests/numba_suite/run.py [--write] MODULE-SUBSTRING ...
    python tests/numba_suite/run.py --report

Without a module it runs all, writes results.json and, from that, the table in docs/compatibility.md. With modules it
prints what they give, and with `--write` replaces that part of the results. `--report` only writes the table again.

A test counts when it needs one GPU and only PTX. What the suite itself skips does not count, and neither does what
`excluded.py` lists, each with its reason.
"""

import argparse
import collections
import concurrent.futures
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import report  # noqa: E402
from excluded import excluded  # noqa: E402
from rekindle import Rekindle  # noqa: E402

FOLDERS = ("core", "cudadrv", "cudapy", "nrt", "doc_examples")
PREFIX = "numba.cuda.tests."
FAILED = ("fail", "error")


def modules():
    """Names of all modules, such as `cudapy.test_atomics`."""
    import numba_cuda

    tests = Path(numba_cuda.__file__).parent / "numba/cuda/tests"
    return [f"{folder}.{path.stem}" for folder in FOLDERS for path in sorted((tests / folder).glob("test_*.py"))]


def run_module(rekindle, name, limit):
    """The module's tests with their outcomes; one that started and never ended is an error with the reason."""
    results = rekindle.root / f"{name}.jsonl"
    started = time.monotonic()
    rekindle.run(name, sys.executable, HERE / "module.py", PREFIX + name, results)
    ended = "the process ended"
    try:
        rekindle.wait_end(name, limit)
    except TimeoutError:
        rekindle("kill", name, check=False)
        ended = f"no end within {limit} s"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    tests = outcomes(rows, ended)
    if not any(row["outcome"] == "finished" or row["test"] == PREFIX + name for row in rows):
        tests[name] = {"outcome": "error", "reason": f"{ended}: " + " | ".join(rekindle.lines(name)[-3:])}
    return summary(tests, time.monotonic() - started)


def outcomes(rows, ended):
    tests = {}
    for row in rows:
        test = row["test"].removeprefix(PREFIX)
        if row["outcome"] == "started":
            tests[test] = {"outcome": "error", "reason": f"{ended} in this test"}
        elif row["outcome"] != "finished" and tests.get(test, {}).get("outcome") != "fail":
            tests[test] = {"outcome": row["outcome"], "reason": row.get("reason", "")}
    for test, row in tests.items():
        reason = excluded(test)
        if reason and row["outcome"] in FAILED:
            row.update(outcome="excluded", reason=reason)
    return tests


def summary(tests, seconds):
    """What results.json keeps of a module."""
    of = lambda *wanted: {test: row for test, row in sorted(tests.items()) if row["outcome"] in wanted}  # noqa: E731
    return {
        "passed": len(of("pass")),
        "failed": {test: last_line(row["reason"]) for test, row in of(*FAILED).items()},
        "excluded": {test: row["reason"] for test, row in of("excluded").items()},
        "skipped": dict(collections.Counter(last_line(row["reason"]) for row in of("skip").values())),
        "seconds": round(seconds, 1),
    }


def last_line(reason):
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "")[:160]


def run(names, jobs, limit):
    """The summaries of the modules by name."""
    files = {}
    with Rekindle() as rekindle, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, found in zip(names, pool.map(lambda name: run_module(rekindle, name, limit), names), strict=True):
            files[name] = found
            counts = {key: len(found[key]) for key in ("failed", "excluded") if found[key]}
            print(f"{name:44} {found['passed']:4} passed {counts or ''} {found['seconds']:.0f} s", flush=True)
            for test, reason in found["failed"].items():
                print(f"    {test}: {reason}")
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--write", action="store_true", help="write the results of the modules that are named")
    parser.add_argument("--require", type=float, default=0, help="fail when a smaller part of the tests that count passes")
    parser.add_argument("--report", action="store_true", help="only write the table again")
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    if options.report:
        report.write()
        return 0
    chosen = [name for name in modules() if not options.only or any(part in name for part in options.only)]
    files = run(chosen, options.jobs, options.limit)
    passed, failed = report.counts(files)
    if options.write or not options.only:
        known = json.loads(report.RESULTS.read_text()) if options.only else {}
        known |= files
        report.RESULTS.write_text(json.dumps({name: known[name] for name in modules() if name in known}, indent=1) + "\n")
        report.write()
    part = passed / max(1, passed + failed)
    print(f"numba-cuda: {passed} of {passed + failed} tests that need one GPU and only PTX pass, {100 * part:.1f} %")
    return 0 if part >= options.require else 1


if __name__ == "__main__":
    sys.exit(main())
