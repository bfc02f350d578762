"""What a program waits for a small kernel: until the GPU, a stream or an event is done, or until it has a number of it.

    benches/gpu/probes/waits.py --out results.json [--bin DIR] [--before DIR] [--rounds N]

The same program of torch natively, in a sandbox with a context of its own, in one that shares its context, and, if it is given, in
one of a build before, in turns. Microseconds from before the launch to after the wait.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benches")]

WARM, COUNT = 200, 3000


def program():
    import torch

    x = torch.zeros(1024, device="cuda")
    stream, event = torch.cuda.current_stream(), torch.cuda.Event()

    def device():
        x.add_(1)
        torch.cuda.synchronize()

    def of_stream():
        x.add_(1)
        stream.synchronize()

    def of_event():
        x.add_(1)
        event.record()
        event.synchronize()

    def number():
        x.add_(1)
        x[0].item()

    ways = {"the GPU": device, "a stream": of_stream, "an event": of_event, "a number": number}
    print(json.dumps({name: quantiles(way) for name, way in ways.items()}))


def quantiles(wait):
    """The median, and what 99 of 100 take at most, µs."""
    for _ in range(WARM):
        wait()
    took = []
    for _ in range(COUNT):
        began = time.perf_counter()
        wait()
        took.append((time.perf_counter() - began) * 1e6)
    took.sort()
    return {"p50_us": took[COUNT // 2], "p99_us": took[COUNT * 99 // 100]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bin", default=ROOT / "target/release", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", action="store_true")
    given = parser.parse_args()
    if given.program:
        program()
    else:
        measure(given)


def measure(given):
    import hardware
    import raw
    from rekindle import Rekindle

    ways = {"native": None, "context of its own": (given.bin, ()), "shared context": (given.bin, ("--share", "waits"))}
    if given.before:
        ways |= {"context of its own, before": (given.before, ()), "shared context, before": (given.before, ("--share", "waits"))}
    command, found = [sys.executable, __file__, "--program"], {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            if way is None:
                said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout
            else:
                binaries, more = way
                with Rekindle("nvidia", binaries=binaries, REKINDLE_CONTEXT_KEEP="1") as rekindle:
                    said = rekindle("run", "--gpu", rekindle.gpu, *more, "--", *command)
            found[name].append(json.loads(said))
            print(name, found[name][-1], flush=True)
    given.out.write_text(raw.document({"machine": hardware.described(), "ways": found}))


if __name__ == "__main__":
    main()
