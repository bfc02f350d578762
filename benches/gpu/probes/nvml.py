"""Programs that call NVML, imaged while they run and restored: whether each call of theirs comes back, and after how long.

    benches/gpu/probes/nvml.py --out results.json [--bin DIR]

One calls NVML every 20 ms. Another has called it when it began, and calls it when it is told to. Both have a context on the GPU.
Three images of each, a pause between them, then a restore of the last. Needs a real GPU. Seconds.
"""

import argparse
import ctypes
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benches"), str(ROOT / "benches/gpu")]

IMAGES, PAUSE_S, POLL_S = 3, 2.5, 0.02


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Nvml:
    """NVML, begun and ended with each call, as programs do that ask for one number."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")

    def used(self):
        device, memory = ctypes.c_void_p(), Memory()
        began = time.perf_counter()
        codes = [
            self.library.nvmlInit_v2(),
            self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
            self.library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)),
            self.library.nvmlShutdown(),
        ]
        return {"seconds": time.perf_counter() - began, "codes": codes, "used": memory.used}


def program(way, trigger):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    assert not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), 0)
    assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) and not cuda.cuCtxSetCurrent(context)
    nvml = Nvml()
    print(json.dumps(nvml.used()), flush=True)
    calls = []

    def poll():
        while True:
            calls.append(nvml.used())
            time.sleep(POLL_S)

    if way == "polls":
        threading.Thread(target=poll, daemon=True).start()
    print("ready", flush=True)
    while True:
        if os.path.exists(trigger):
            os.unlink(trigger)
            kept, calls[:] = list(calls), []
            asked = nvml.used() if way == "asks" else None
            longest = max((call["seconds"] for call in kept), default=None)
            failed = [call for call in kept if any(call["codes"])]
            Path(f"{trigger}.new").write_text(json.dumps({"calls": len(kept), "longest_s": longest, "failed": failed, "asked": asked}))
            os.rename(f"{trigger}.new", f"{trigger}.answer")
        time.sleep(0.002)


def ask(rekindle, name, trigger):
    """What the program has seen since it was asked the last time."""
    from programs import wait_for

    answer = Path(f"{trigger}.answer")
    answer.unlink(missing_ok=True)
    trigger.touch()
    try:
        wait_for(answer.exists, 10, "an answer")
    except TimeoutError as error:
        raise RuntimeError(f"{name} gives no answer: {rekindle('logs', name)[-2000:]}") from error
    return json.loads(answer.read_text())


def row(rekindle, way, trigger):
    """How long images took and of what, with what the program saw of NVML about each."""
    from programs import wait_for

    found = {"images": []}
    rekindle.run(way, sys.executable, str(Path(__file__).resolve()), "--program", way, str(trigger))
    wait_for(lambda: "ready" in rekindle.lines(way) or not rekindle.sandbox(way)["pid"], 60, way)
    for number in range(IMAGES):
        time.sleep(PAUSE_S)
        report = rekindle.json("checkpoint", way, "--to", f"{way}-{number}", "--leave-running")
        released = [
            phase["duration_us"] / 1e6 for phase in report["phases"] if phase["name"] in ("release", "detach") and phase["duration_us"] > 1000
        ]
        one = {"total_s": report["total_us"] / 1e6, "stopped_s": report["stopped_us"] / 1e6, "detached_s": released}
        # The program that asks does so after the second image alone: the third finds the driver as that left it.
        if way == "polls" or number == 1:
            one["seen"] = ask(rekindle, way, trigger)
        found["images"].append(one)
    rekindle("kill", way)
    rekindle.restore(f"{way}-{IMAGES - 1}", f"{way}-restored")
    time.sleep(0.3)
    found["restored"] = ask(rekindle, f"{way}-restored", trigger)
    report = rekindle.json("checkpoint", f"{way}-restored", "--to", f"{way}-again", "--leave-running")
    found["again"] = {"total_s": report["total_us"] / 1e6, "stopped_s": report["stopped_us"] / 1e6}
    time.sleep(PAUSE_S)
    found["after"] = ask(rekindle, f"{way}-restored", trigger)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--program", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.program:
        program(*given.program)
    import raw
    from rekindle import Rekindle

    with tempfile.TemporaryDirectory() as work, Rekindle("nvidia", binaries=given.bin) as rekindle:
        rows = {way: row(rekindle, way, Path(work) / f"ask-{way}") for way in ("polls", "asks")}
    given.out.write_text(raw.document({"rows": rows}))
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
