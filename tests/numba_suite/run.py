"""numba-cuda's own test suite, from its wheel, on the emulated GPU: each module in a sandbox of its own.

    python tests/numba_suite/run.py [--jobs N] [--limit SECONDS] [--out results.json] [MODULE-SUBSTRING ...]

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
from excluded import excluded  # noqa: E402
from rekindle import Rekindle  # noqa: E402

FOLDERS = ("core", "cudadrv", "cudapy", "nrt", "doc_examples")


def modules():
    import numba_cuda

    tests = Path(numba_cuda.__file__).parent / "numba/cuda/tests"
    return [f"numba.cuda.tests.{folder}.{path.stem}" for folder in FOLDERS for path in sorted((tests / folder).glob("test_*.py"))]


def run_module(rekindle, module, limit):
    """Rows of the module's tests; a test that started and never ended is an error with the reason."""
    name = module.removeprefix("numba.cuda.tests.")
    results = rekindle.root / f"{name}.jsonl"
    started = time.monotonic()
    rekindle.run(name, sys.executable, HERE / "module.py", module, results)
    ended = "the process ended"
    try:
        rekindle.wait(lambda: not rekindle.sandbox(name)["pid"], name, limit)
    except TimeoutError:
        rekindle("kill", name, check=False)
        ended = f"no end within {limit} s"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    tests, finished = {}, False
    for row in rows:
        finished |= row["outcome"] == "finished"
        if row["outcome"] == "started":
            tests[row["test"]] = {"outcome": "error", "reason": f"{ended} in this test"}
        elif row["outcome"] != "finished" and tests.get(row["test"], {}).get("outcome") not in ("fail",):
            tests[row["test"]] = row
    if not finished and not any(t["outcome"] == "skip" and t.get("test") == module for t in tests.values()):
        tests.setdefault(module, {"outcome": "error", "reason": f"{ended}: " + " | ".join(rekindle.lines(name)[-3:])})
    for test, row in tests.items():
        reason = excluded(test)
        if reason and row["outcome"] != "pass":
            row.update(outcome="excluded", reason=reason)
    return name, tests, time.monotonic() - started


def last_line(reason):
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "")[:160]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=240)
    parser.add_argument("--out", default=str(HERE / "results.json"))
    parser.add_argument("--require", type=float, default=0, help="fail when a smaller part of the tests that count passes")
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    chosen = [m for m in modules() if not options.only or any(o in m for o in options.only)]
    total, files = collections.Counter(), {}
    with Rekindle() as rekindle, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, tests, seconds in pool.map(lambda m: run_module(rekindle, m, options.limit), chosen):
            count = collections.Counter(row["outcome"] for row in tests.values())
            total.update(count)
            reasons = collections.Counter(last_line(r["reason"]) for r in tests.values() if r["outcome"] in ("fail", "error", "excluded"))
            files[name] = {"counts": dict(count), "reasons": dict(reasons.most_common(4)), "seconds": round(seconds, 1)}
            bad = [t for t, r in tests.items() if r["outcome"] in ("fail", "error")]
            files[name]["failing"] = sorted(t.removeprefix("numba.cuda.tests.") for t in bad)
            print(f"{name:48} {dict(count)} {seconds:.0f} s {next(iter(reasons), '')[:100]}", flush=True)
    counted = total["pass"] + total["fail"] + total["error"]
    part = total["pass"] / max(1, counted)
    Path(options.out).write_text(json.dumps({"total": dict(total), "part": part, "files": files}, indent=1) + "\n")
    print(f"{total['pass']} passed, {counted - total['pass']} failed, {total['skip'] + total['excluded']} skipped")
    print(f"numba-cuda: {100 * part:.1f} % of the {counted} tests that need one GPU and only PTX")
    return 0 if part >= options.require else 1


if __name__ == "__main__":
    sys.exit(main())
