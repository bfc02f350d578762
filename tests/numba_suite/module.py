"""Runs one module of numba-cuda's own test suite in this process; writes a JSON line per test, as tests end.

python module.py MODULE RESULTS
"""

import json
import sys
import time
import traceback
import unittest


class Recorder(unittest.TestResult):
    """Results as they come, so that a crash loses only the test that crashed."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def write(self, test, outcome, reason=""):
        row = {
            "test": test.id(),
            "outcome": outcome,
            "reason": reason[-1200:],
            "seconds": round(time.monotonic() - getattr(self, "began", time.monotonic()), 3),
        }
        print(json.dumps(row), file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        print(json.dumps({"test": test.id(), "outcome": "started"}), file=self.out, flush=True)

    def addSuccess(self, test):
        self.write(test, "pass")

    def addError(self, test, error):
        self.write(test, "error", "".join(traceback.format_exception(*error)))

    def addFailure(self, test, error):
        self.write(test, "fail", "".join(traceback.format_exception(*error)))

    def addSkip(self, test, reason):
        self.write(test, "skip", reason)

    def addExpectedFailure(self, test, error):
        self.write(test, "pass", "expected failure")

    def addUnexpectedSuccess(self, test):
        self.write(test, "fail", "passes although the suite expects a failure")

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.write(test, "fail", "".join(traceback.format_exception(*error)))


def main():
    module, results = sys.argv[1:]
    with open(results, "w") as out:
        try:
            suite = unittest.defaultTestLoader.loadTestsFromName(module)
        except unittest.SkipTest as skip:
            print(json.dumps({"test": module, "outcome": "skip", "reason": str(skip)}), file=out, flush=True)
            return
        suite.run(Recorder(out))
        print(json.dumps({"test": module, "outcome": "finished"}), file=out, flush=True)


if __name__ == "__main__":
    main()
