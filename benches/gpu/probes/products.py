"""Do images come back of a torch program that multiplies in bf16 on processors, which use tile registers (AMX) for that?

    benches/gpu/probes/products.py --bin NAME=DIR [--bin NAME=DIR ...] --out results.json [--images 10]

Six threads make the same products all the time and compare them. So many images are taken while they go on, at any moment; each is
restored, and lives if it has made a thousand products more. Needs no GPU, and processors with tiles.
"""

import argparse
import contextlib
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benches")]

import hardware  # noqa: E402
import raw  # noqa: E402
from rekindle import Rekindle  # noqa: E402

THREADS, SIZE, LIMIT_S = 6, 256, 20
PROGRAM = f"""
import threading, torch
torch.set_num_threads(1)

def multiply(number):
    chance = torch.Generator().manual_seed(number)
    left, right = (torch.randn({SIZE}, {SIZE}, generator=chance).bfloat16() for _ in range(2))
    first, count = left @ right, 0
    while True:
        count += 1
        if not torch.equal(left @ right, first):
            print("wrong", number, flush=True)
        if count % 1000 == 0:
            print("products", number, count, flush=True)

for number in range({THREADS}):
    threading.Thread(target=multiply, args=(number,)).start()
"""


def fate(rekindle, name):
    """Of a program that runs since a moment."""
    more = lambda: {line.split()[1] for line in rekindle.lines(name) if line.startswith("products")}
    until = time.monotonic() + LIMIT_S
    while rekindle.sandbox(name)["pid"] and len(more()) < THREADS and time.monotonic() < until:
        time.sleep(0.05)
    if any(line.startswith("wrong") for line in rekindle.lines(name)):
        return "wrong"
    if not rekindle.sandbox(name)["pid"]:
        return "ended"
    return "lives" if len(more()) == THREADS else "stands"


def measure(binaries, count):
    with Rekindle(binaries=binaries) as rekindle:
        rekindle("run", "-d", "--name", "first", "--", sys.executable, "-c", PROGRAM)
        rekindle.wait(lambda: len(rekindle.lines("first")) > THREADS, "products", LIMIT_S)
        stops = []
        for number in range(count):
            stops.append(rekindle.json("checkpoint", "first", "--to", str(number), "--leave-running")["stopped_us"] / 1e6)
            time.sleep(0.2)
        row = {"stopped_s": stops, "goes_on": fate(rekindle, "first"), "restored": []}
        rekindle("kill", "first", check=False)
        for number in range(count):
            rekindle.restore(str(number), f"again-{number}")
            row["restored"].append(fate(rekindle, f"again-{number}"))
            with contextlib.suppress(Exception):
                rekindle("kill", f"again-{number}")
        return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10)
    given = parser.parse_args()
    rows = {}
    for name, directory in (one.split("=", 1) for one in given.bin):
        rows[name] = measure(Path(directory), given.images)
        print(f"{name}: it {rows[name]['goes_on']}; its images: {', '.join(rows[name]['restored'])}", flush=True)
    given.out.write_text(raw.document({"machine": hardware.described(), "rows": rows}))


if __name__ == "__main__":
    main()
