"""Counts as far as the file `limit` in a directory says, and notes each step in the file `steps` there."""

import os
import sys
import time
from pathlib import Path

place, count = Path(sys.argv[1]), 0
while True:
    while count >= int((place / "limit").read_text() or 0):
        time.sleep(0.01)
    count += 1
    print(count, flush=True)
    # By name alone: an image of a program has the files that it has open, as they are then.
    os.truncate(place / "steps", count)
    time.sleep(0.02)
