"""examples/01_train.py, which takes as many steps as a file says and no more.

program.py FILE [OPTION of the example ...]
"""

import importlib
import sys
import time
from pathlib import Path

# A copy of the example beside this one comes first.
sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "examples"))
example = importlib.import_module("01_train")
limit = Path(sys.argv.pop(1))


class Clock:
    """The example pauses after each step."""

    steps = 0

    def sleep(self, seconds):
        self.steps += 1
        time.sleep(seconds)
        while self.steps >= int(limit.read_text()):
            time.sleep(0.005)


example.time = Clock()
example.main()
