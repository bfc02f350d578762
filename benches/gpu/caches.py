"""One image restored from wherever its contents can be: the disk, the page cache, pinned host memory, GPU memory."""

import contextlib
import os
import statistics
import time

from images import ask, rates, wait_for_worker
from programs import start_service
from rekindle import Rekindle

LIMITS = {
    "disk": {},
    "page cache": {},
    "host cache": {"REKINDLE_HOST_CACHE": "16G"},
    "GPU cache": {"REKINDLE_HOST_CACHE": "0", "REKINDLE_GPU_CACHE": "16G"},
}


def drop(directory):
    """Has the page cache forget all files below."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def wait_filled(rekindle, limit=30):
    """Until caches change no more: what there is for them is in them."""
    last, since, end = None, time.monotonic(), time.monotonic() + limit
    while time.monotonic() < end and time.monotonic() - since < 0.7:
        now = rekindle.json("images")["caches"]
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.05)
    return last


def warnings(state):
    """What daemon and workers were not content with."""
    lines = [line for path in sorted(state.rglob("*.log")) for line in path.read_text(errors="replace").splitlines()]
    return [line for line in lines if " WARN " in line or " ERROR " in line][-20:]


def restore(rekindle, image, label, trigger, work):
    start = time.perf_counter()
    report = rekindle.restore(image, label)
    running = time.perf_counter() - start
    _, answer = ask(trigger)
    first = time.perf_counter() - start
    warm, _ = ask(trigger)
    report["phases"] = rekindle.json("trace", label, "--svg", work / "trace.svg")["traces"][-1]["phases"]
    rekindle("kill", label)
    loading = next(phase for phase in report["phases"] if phase["name"] == "GPU memory")
    times = {"running_s": running, "first_answer_s": first, "warm_answer_s": warm, "from": loading.get("from", {})}
    return {**rates(report["phases"]), **times, "report": report}, answer


def measure(binaries, name, work, rounds):
    """The image lies on the disk that `work` is on; a daemon for each way, the first restore of each not counted."""
    trigger, image, state = work / f"{name}-cache-ask", f"{name}-cached", work / f"{name}-cache-state"
    row = {"ok": True, "ways": {}}
    with Rekindle(gpu="nvidia", binaries=binaries, state=state) as rekindle:
        start_service(rekindle, image, name, trigger)
        row["warm_answer_s"], expected = ask(trigger)
        rekindle("checkpoint", image, "--to", image, "--stop")
    for way, limits in LIMITS.items():
        with Rekindle(gpu="nvidia", binaries=binaries, state=state, **limits) as rekindle:
            one = row["ways"][way] = {"restores": []}
            for n in range(rounds + 1):
                with contextlib.suppress(TimeoutError):
                    wait_for_worker(rekindle, image)
                one["caches"] = wait_filled(rekindle) if limits else None
                if way == "disk":
                    drop(state / "store")
                measured, answer = restore(rekindle, image, f"{image}-{n}", trigger, work)
                row["ok"] &= answer == expected
                if n:
                    one["restores"].append(measured)
            one["warnings"] = warnings(state)
            for key in ("running_s", "first_answer_s", "gb_per_s"):
                one[key] = statistics.median(each[key] for each in one["restores"])
    return row
