"""Counts, and does what the files in a directory ask for: `loop` fails, always, and `end` ends it."""

import os
import sys
import time
from pathlib import Path

place = Path(sys.argv[1])
count = 0
while True:
    count += 1
    print(count, flush=True)
    if (place / "loop").exists():
        os._exit(4)
    if (place / "end").exists():
        sys.exit(0)
    time.sleep(0.01)
