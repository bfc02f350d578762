"""Does what the files 0, 1, … of a directory say, in Python, and prints what they leave in `said`."""

import json
import sys
import time
from pathlib import Path

steps, names, done = Path(sys.argv[1]), {}, 0
while True:
    step = steps / str(done)
    while not step.exists():
        time.sleep(0.01)
    try:
        exec(step.read_text(), names)
    except OSError as error:
        names["said"] = f"errno {error.errno}"
    print(json.dumps(names.get("said")), flush=True)
    done += 1
