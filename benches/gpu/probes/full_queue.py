"""A thread that has filled its stream's queue, and what another thread of the same program waits for meanwhile.

    benches/gpu/probes/full_queue.py --out results.json [--bin DIR]

One thread launches kernels of 0.3 ms to its stream and waits for none, for a second. Another launches a small one to a stream of its
own every 5 ms, and waits for it. Once with the two alone, and once where the first thread's stream waits for a value that the second
one writes: whether both go on. Natively and in a sandbox; seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/features"), str(ROOT / "benches")]

SOURCE = """
extern "C" __global__ void nap(unsigned long long ns) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - began < ns);
}
"""
LAUNCHES, NAP_NS = 4000, 300_000
# After so many seconds it has not gone on.
STUCK = 8


def program():
    import numpy as np
    from cuda.bindings import driver
    from gpu import Module, call, open_device

    context = open_device()
    module = Module(SOURCE)
    streams = [call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING) for _ in range(2)]
    value = int(call("cuMemAlloc", 4096))
    call("cuMemsetD32", value, 0, 1)
    module.nap(1, 1, np.uint64(1000), stream=streams[0])
    call("cuCtxSynchronize")
    found = {}

    def fill(way, waits):
        call("cuCtxSetCurrent", context)
        if waits:
            call("cuStreamWaitValue32", streams[0], value, 1, driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
        took = []
        for _ in range(LAUNCHES):
            began = time.perf_counter()
            module.nap(1, 1, np.uint64(10_000 if waits else NAP_NS), stream=streams[0])
            took.append(time.perf_counter() - began)
        held = [number for number, seconds in enumerate(took) if seconds > 100e-6]
        found[way] = {"launches_s": sum(took), "longest_launch_s": max(took), "first_held": held[0] if held else None}

    # The other thread's, beside a queue that is full.
    first = threading.Thread(target=fill, args=("busy", False), daemon=True)
    first.start()
    answers = []
    while first.is_alive():
        began = time.perf_counter()
        module.nap(1, 1, np.uint64(1000), stream=streams[1])
        call("cuStreamSynchronize", streams[1])
        answers.append(time.perf_counter() - began)
        time.sleep(0.005)
    call("cuCtxSynchronize")
    found["beside_s"] = sorted(answers)
    # One that only the other thread releases.
    first = threading.Thread(target=fill, args=("waits", True), daemon=True)
    began = time.perf_counter()
    first.start()
    time.sleep(1)

    def release():
        call("cuCtxSetCurrent", context)
        call("cuStreamWriteValue32", streams[1], value, 1, 0)

    second = threading.Thread(target=release, daemon=True)
    second.start()
    first.join(STUCK)
    found["released_s"] = None if first.is_alive() else time.perf_counter() - began
    print(json.dumps(found), flush=True)
    os._exit(0)


def answer(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-500:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bin", default=ROOT / "target/release", type=Path)
    parser.add_argument("--gpu", default="nvidia")
    parser.add_argument("--program", action="store_true")
    given = parser.parse_args()
    if given.program:
        program()
    import raw
    from rekindle import ProcessesLeft, Rekindle

    command, results = [sys.executable, __file__, "--program"], {}
    if given.gpu == "nvidia":
        results["native"] = answer(command, None)
    for way, more in (("context of its own", ()), ("shared context", ("--share", "queue"))):
        try:
            with Rekindle(given.gpu, binaries=given.bin) as rekindle:
                results[way] = answer([rekindle.command, "run", "--gpu", rekindle.gpu, *more, "--", *command], rekindle.environment)
        except ProcessesLeft as left:
            results[way]["left"] = str(left)
    given.out.write_text(raw.document(results))
    for way, found in results.items():
        beside = found.pop("beside_s", [0])
        print(way, found, "beside: median", beside[len(beside) // 2], "p90", beside[len(beside) * 9 // 10], "max", beside[-1], len(beside))


if __name__ == "__main__":
    main()
