"""What CRIU does while a service stands still for an image: how long each part of its dump takes.

    python benches/gpu/probes/dump.py [--binaries DIR] [--gpu nvidia] [--out FILE] [--images 3]

The service of the benchmark's part `cut` is imaged some times with `--leave-running`, once with CRIU writing down all that it
does, which has times, and once without, for what the dump takes then. Needs torch and transformers, and takes a minute.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benches/gpu")]

from cut import SERVED  # noqa: E402
from images import ask, memory_directory  # noqa: E402
from programs import python_program, wait_for  # noqa: E402
from rekindle import Rekindle  # noqa: E402

# What CRIU writes down at the beginning of each part.
PARTS = [
    ("threads are brought to a stand", "irmap: Searching irmap cache in work dir"),
    ("mounts", "RPC NOTIFY query-ext-files"),
    ("sockets", "net: Collecting netns"),
    ("areas", "Dumping task (pid"),
    ("open files", "Collected, longest area"),
    ("code is put into the process", "Dump private signals"),
    ("pages", "Dumping pages"),
    ("threads", "Dumping core (pid"),
    ("memory and the rest", "Dumping mm"),
    ("end", "Namespaces dump complete"),
]
LINE = re.compile(r"\((\d+\.\d+)\) (.*)")


def parts(log):
    """Milliseconds of each part, by CRIU's log."""
    lines = [(float(line[1]), line[2]) for line in map(LINE.match, log.splitlines()) if line]
    begins = [next(at for at, text in lines if text.startswith(words)) for _, words in PARTS]
    return {name: round((end - begin) * 1e3, 1) for (name, _), begin, end in zip(PARTS, begins, begins[1:], strict=False)}


def images(options, state, work, environment):
    """For each image how long the dump took, and its parts if CRIU has told them."""
    with Rekindle(options.gpu, options.binaries, state, REKINDLE_FAULT="frozen:hang", **environment) as rekindle:
        trigger = work / "ask"
        rekindle.run("service", *python_program(SERVED, "--serve", trigger))
        wait_for(lambda: "ready" in rekindle.lines("service") or not rekindle.sandbox("service")["pid"], 120, "the service")
        process = Path("/proc") / str(rekindle.sandbox("service")["pid"])
        found = {"threads": len(list((process / "task").iterdir())), "areas": (process / "maps").read_text().count("\n"), "images": []}
        for number in range(options.images):
            for _ in range(10):
                ask(trigger)
            taken = rekindle.begin("checkpoint", "service", "--to", str(number), "--leave-running", "--json")
            rekindle.reached("frozen")
            (log,) = state.rglob("dump.log")
            told = parts(log.read_text(errors="replace")) if environment else {}
            rekindle.let_go("frozen")
            report = json.loads(taken.end())
            rekindle.hold_again("frozen")
            dump = next(phase["duration_us"] for phase in report["phases"] if phase["name"] == "dump")
            found["images"].append({"dump_ms": round(dump / 1e3, 1), **told})
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path)
    parser.add_argument("--gpu", default="nvidia")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--images", type=int, default=3)
    options = parser.parse_args()
    found = {}
    for way, environment in (("all is written down", {"REKINDLE_LOG": "debug"}), ("as usual", {})):
        with memory_directory() as (state, _), tempfile.TemporaryDirectory() as work:
            found[way] = images(options, state, Path(work), environment)
            print(way, json.dumps(found[way]), flush=True)
    options.out.write_text(json.dumps({"what": "milliseconds of CRIU's dump of a service", **found}, indent=1) + "\n")


main()
