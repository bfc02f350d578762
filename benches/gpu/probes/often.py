#!/usr/bin/env python3
"""Programs that are imaged all the time while they go on: whether all of them live, and how many images came behind enqueued work.

    benches/gpu/probes/often.py --out FILE [--gpu nvidia:0,1] [--bin DIR] [--workload split-two] [--ahead 64] [--programs 6] [--seconds 28] [--tuning WORDS]

With `--tuning gpu.moment=off,gpu.shadow=check` programs are stopped whatever their GPUs have to do, and each image is compared with what
memory held.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "tests"), str(HERE.parent)]

from programs import python_program, wait_for  # noqa: E402
from rekindle import CommandError, Rekindle  # noqa: E402


def steps(file):
    return file.read_text().count("\n") if file.exists() else 0


def taken(rekindle, name, until):
    """How many images there were, and of them behind work, and begun again; and how long each had the program stand still."""
    row = {"images": 0, "behind": 0, "again": 0, "stopped_ms": []}
    while time.monotonic() < until:
        image = f"{name}-{row['images']}"
        try:
            report = rekindle.json("checkpoint", name, "--to", image, "--leave-running")
        except CommandError as error:
            return row | {"error": str(error)[-400:]}
        phases = [phase["name"] for phase in report["phases"]]
        row["images"] += 1
        row["stopped_ms"].append(report["stopped_us"] / 1e3)
        row["behind"] += "the program's work" in phases and "waited" not in report
        row["again"] += phases.count("freeze") > 1
        rekindle("rmi", image)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu", default="nvidia:0,1")
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--workload", default="split-two")
    parser.add_argument("--ahead", type=int, default=64, help="steps that the GPUs always have before them; 0: what the program asks for by itself")
    parser.add_argument("--programs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=28)
    parser.add_argument("--tuning", default="gpu.moment=off")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        Rekindle(given.gpu, binaries=given.bin, REKINDLE_TUNING=given.tuning) as rekindle,
    ):
        files = {f"program-{number}": Path(directory) / str(number) for number in range(given.programs)}
        for name, file in files.items():
            rekindle.run(name, *python_program(given.workload, "--train", file, "--ahead", given.ahead))
        wait_for(lambda: all(map(steps, files.values())), 120, "the first step of each")
        rows, until = {}, time.monotonic() + given.seconds
        take = lambda name: rows.__setitem__(name, taken(rekindle, name, until))
        threads = [threading.Thread(target=take, args=(name,)) for name in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, file in files.items():
            rows[name] |= {"steps": steps(file), "lives": bool(rekindle.sandbox(name)["pid"])}
        result = {name: value for name, value in vars(given).items() if name not in ("out", "bin")} | {"programs": rows}
        given.out.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result))
        rekindle("kill", *files, check=False)
    return not all(row["lives"] and "error" not in row for row in rows.values())


if __name__ == "__main__":
    sys.exit(main())
