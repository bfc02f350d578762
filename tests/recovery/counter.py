"""Counts, and does what the files in a directory ask for: `crash` once, `loop` always, `end`."""

import os
import sys
import time
from pathlib import Path

place = Path(sys.argv[1])
count = 0
while True:
    count += 1
    print(count, flush=True)
    if (place / "crash").exists():
        (place / "crash").unlink()
        os._exit(3)
    if (place / "loop").exists():
        os._exit(4)
    if (place / "end").exists():
        sys.exit(0)
    time.sleep(0.01)
