"""What sandboxes leave behind: `soak leaks --restores 1000 --sandboxes 200 --out report.json`.

One image is restored and killed so many times in a row, and then in so many sandboxes at once, on the emulated GPU. What
the daemon, the machine's memory and the disk hold is counted before and after.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from leaks import campaign  # noqa: E402
from rekindle import Rekindle  # noqa: E402


def main(words):
    parser = argparse.ArgumentParser(prog="soak leaks", description=__doc__.split("\n\n")[0])
    parser.add_argument("--restores", type=int, default=1000, help="restores in a row (1000)")
    parser.add_argument("--sandboxes", type=int, default=200, help="sandboxes at once (200)")
    parser.add_argument("--out", type=Path, help="where the report goes")
    given = parser.parse_args(words)
    if not os.environ.get("REKINDLE_CRIU_DIR") and (ROOT / ".build/criu").is_dir():
        os.environ["REKINDLE_CRIU_DIR"] = str(ROOT / ".build/criu")
    # As many workers wait before as after.
    with Rekindle(REKINDLE_POOL_WINDOW="0") as rekindle:
        found = campaign.run(rekindle, given.restores, given.sandboxes)
    found["machine"] = {"cores": os.cpu_count(), "kernel": platform.release()}
    text = json.dumps(found, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)
    return 1 if found["leaked"] else 0
