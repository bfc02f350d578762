"""numba-cuda's own tests: a sample of them, against what the whole suite gave when it was last run."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "numba_suite"))
import report
import run
import sample

WHOLE = json.loads(report.RESULTS.read_text())


def test_the_report_is_that_of_the_results():
    _, found, _ = report.section(report.DOCUMENT.read_text())
    assert found == report.table(WHOLE), "write it again with `tests/numba_suite/run.py --report`"
    assert set(WHOLE) == set(run.modules()), "`make numba-suite` runs every module"
    passed, failed = report.counts(WHOLE)
    assert passed >= 0.95 * (passed + failed)


@pytest.mark.timeout(1800)
def test_a_sample_of_all_folders():
    files = run.run(sample.NAMES, jobs=2, limit=600)
    passed, failed = report.counts(files)
    assert passed >= 0.95 * (passed + failed)
    worse = {test: reason for name, found in files.items() for test, reason in found["failed"].items() if test not in WHOLE[name]["failed"]}
    assert not worse, "tests that passed when the suite was last run as a whole"
    fewer = {name: (found["passed"], WHOLE[name]["passed"]) for name, found in files.items() if found["passed"] < WHOLE[name]["passed"]}
    assert not fewer, "modules where fewer tests pass than when the suite was last run as a whole"
