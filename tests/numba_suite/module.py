"""Runs one module of numba-cuda's own test suite in this process; writes a JSON line per test, as tests end.

python module.py MODULE RESULTS
"""

import inspect
import json
import sys
import time
import traceback
import unittest

from _pytest.outcomes import Skipped

# How long a test may wait for a Python that it spawns. The suite gives it 4 seconds, which beside other tests its imports alone can take.
SPAWNED_SECONDS = 120


class Recorder(unittest.TestResult):
    """Results as they come, so that a crash loses only the test that crashed."""

    def __init__(self, out):
        super().__init__()
        self.out = out
        self.began = time.monotonic()

    def write(self, test, outcome, reason=""):
        seconds = round(time.monotonic() - self.began, 3)
        row = {"test": test.id(), "outcome": outcome, "reason": reason[-1200:], "seconds": seconds}
        print(json.dumps(row), file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        print(json.dumps({"test": test.id(), "outcome": "started"}), file=self.out, flush=True)

    def addSuccess(self, test):
        self.write(test, "pass")

    def addError(self, test, error):
        if isinstance(error[1], Skipped):
            self.addSkip(test, str(error[1]))
        else:
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


class Function(unittest.FunctionTestCase):
    """A test that is a plain function, as pytest would find it."""

    def id(self):
        return f"{self._testFunc.__module__}.{self._testFunc.__name__}"


def load(module):
    suite = unittest.defaultTestLoader.loadTestsFromName(module)
    here = vars(sys.modules[module]) if module in sys.modules else {}
    if "FUTURE_TIMEOUT" in here:
        here["FUTURE_TIMEOUT"] = SPAWNED_SECONDS
    functions = [f for key, f in here.items() if key.startswith("test_") and inspect.isfunction(f)]
    suite.addTests(Function(f) for f in functions if f.__module__ == module and not inspect.signature(f).parameters)
    return suite


def main():
    module, results = sys.argv[1:]
    with open(results, "w") as out:
        try:
            suite = load(module)
        except (unittest.SkipTest, Skipped) as skip:
            print(json.dumps({"test": module, "outcome": "skip", "reason": str(skip)}), file=out, flush=True)
            return
        suite.run(Recorder(out))
        print(json.dumps({"test": module, "outcome": "finished"}), file=out, flush=True)


if __name__ == "__main__":
    main()
