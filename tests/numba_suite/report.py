"""The table of numba-cuda's suite in docs/compatibility.md, from results.json."""

import collections
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
DOCUMENT = HERE.parent.parent / "docs/compatibility.md"
BEGIN, END = "<!-- numba-cuda: begin -->\n", "<!-- numba-cuda: end -->\n"


def counts(files):
    """Tests that count: (passed, failed)."""
    return sum(f["passed"] for f in files.values()), sum(len(f["failed"]) for f in files.values())


def not_run(found):
    return len(found["excluded"]) + sum(found["skipped"].values())


def table(files):
    passed, failed = counts(files)
    lines = [
        f"Of the {passed + failed} tests that count, {passed} pass ({100 * passed / (passed + failed):.1f} %).",
        "",
        "| file | pass | fail | not counted |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| `{name}` | {f['passed']} | {len(f['failed'])} | {not_run(f)} |" for name, f in files.items()]
    failures = [f"| `{test}` | {cell(reason)} |" for f in files.values() for test, reason in f["failed"].items()]
    if failures:
        lines += ["", "What fails:", "", "| test | reason |", "| --- | --- |", *failures]
    lines += ["", "What does not count:", "", "| tests | reason |", "| --- | --- |"]
    lines += [f"| {count} | {cell(reason)} |" for reason, count in reasons(files).most_common()]
    return "\n".join(lines) + "\n"


def reasons(files):
    """How many tests do not count, by reason: `excluded.py`'s, or what the suite gives itself."""
    found = collections.Counter()
    for summary in files.values():
        found.update(summary["excluded"].values())
        found.update(summary["skipped"])
    return found


def cell(text):
    return (text or "none given").replace("|", "\\|").replace("<", "&lt;")


def section(document):
    before, rest = document.split(BEGIN)
    old, after = rest.split(END)
    return before, old, after


def write():
    before, _, after = section(DOCUMENT.read_text())
    files = json.loads(RESULTS.read_text())
    DOCUMENT.write_text(before + BEGIN + table(files) + END + after)
