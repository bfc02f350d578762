"""What the programs here share: `program.py END` makes steps, a line `step NUMBER RESULT` each, until the file END is there."""

import hashlib
import itertools
import sys
import time
from pathlib import Path

# Seconds between steps: a run is to be long, and its lines few.
PAUSE = 0.03


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()[:24]


def make(step):
    end = Path(sys.argv[1])
    for number in itertools.count():
        if end.exists():
            return
        print(f"step {number} {step(number)}", flush=True)
        time.sleep(PAUSE)
