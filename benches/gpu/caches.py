"""One image restored from wherever its contents can be: the disk, the page cache, pinned host memory, GPU memory, from
where they are copied or, as far as nobody writes to them, mapped."""

import contextlib
import json
import os
import statistics
import sys
import time
from pathlib import Path

from images import answers, ask, rates, wait_for_worker
from programs import start_service
from rekindle import Rekindle
from scale import gpu_bytes

MODEL = Path(__file__).resolve().parents[2] / "crates/cli/tests/programs/model.py"

LIMITS = {
    "disk": {},
    "page cache": {},
    "host cache": {"REKINDLE_HOST_CACHE": "16G"},
    "GPU cache": {"REKINDLE_HOST_CACHE": "0", "REKINDLE_GPU_CACHE": "16G", "REKINDLE_TUNING": "cache.share=off"},
    "shared": {"REKINDLE_HOST_CACHE": "0", "REKINDLE_GPU_CACHE": "16G"},
}


def drop(directory):
    """Has the page cache forget all files below."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def read_whole(directory):
    """Has the page cache know all files below."""
    buffer = memoryview(bytearray(8 << 20))
    for path in directory.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def read_bytes(directory):
    """What was read from the disk that this lies on, since the machine was started; 0 where it lies on none."""
    device = os.stat(directory).st_dev
    with contextlib.suppress(FileNotFoundError), open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat") as stat:
        return int(stat.read().split()[2]) * 512
    return 0


def wait_quiet(directory, limit=20):
    """Until nothing more is read: what a restore has read past the page cache is read into it afterwards."""
    last, end = -1, time.monotonic() + limit
    while (now := read_bytes(directory)) != last and time.monotonic() < end:
        last = now
        time.sleep(0.3)


def wait_filled(rekindle, limit=60):
    """Until caches change no more: what there is for them is in them. A worker that fills a GPU's starts within seconds."""
    last, since, end = None, time.monotonic(), time.monotonic() + limit
    while time.monotonic() < end and time.monotonic() - since < 3:
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


def learn(rekindle, image, trigger):
    """Has it found out which buffers a request leaves as they are."""
    request = f"touch {trigger}; while test -e {trigger}; do sleep 0.01; done; sleep 0.3"
    return len(json.loads(rekindle("--json", "profile", image, "--", "sh", "-c", request))["unwritten"])


def further(rekindle, image, trigger, expected):
    """What one more instance takes of the GPU's memory, its context with it, beside one that has answered too."""
    names, used = [f"{image}-one", f"{image}-further"], []
    # Those before are of other instances, one of which was profiled with other contents.
    before = len(answers(trigger))
    for name in names:
        wait_for_worker(rekindle)
        wait_filled(rekindle)
        used.append(gpu_bytes())
        rekindle.restore(image, name)
        while not rekindle.lines(name):
            ask(trigger)
    # What mending a fault would take is given back by then.
    time.sleep(1)
    wait_for_worker(rekindle)
    used.append(gpu_bytes())
    one = rekindle.sandbox(names[1])
    rekindle("kill", *names)
    own = one["device_bytes"] - one["shared_bytes"]
    ok = set(answers(trigger)[before:]) == {expected}
    return {"ok": ok, "gpu_bytes": used[2] - used[1], "own_bytes": own, "shared_bytes": one["shared_bytes"]}


def mend(binaries, work, rounds):
    """A kernel of one of two instances writes to a buffer that both share: how long that one then takes."""
    row = {"ok": True, "mended_s": []}
    program = [sys.executable, "-u", MODEL, "240"]
    with Rekindle(gpu="nvidia", binaries=binaries, state=work / "mend-state", **LIMITS["shared"]) as rekindle:
        rekindle.run("model", *program)
        rekindle.wait(lambda: rekindle.sandbox("model")["state"] == "running" and len(rekindle.lines("model")) > 3, "the model")
        rekindle("checkpoint", "model", "--to", "model", "--stop")
        row["unwritten"] = len(json.loads(rekindle("--json", "profile", "model", "--", "sleep", "0.3"))["unwritten"])
        for n in range(rounds):
            names = [f"one-{n}", f"other-{n}"]
            for name in names:
                wait_for_worker(rekindle)
                wait_filled(rekindle)
                rekindle.restore("model", name)
                rekindle.wait_lines(name, 4)
            row["ok"] &= all(rekindle.sandbox(name)["shared_bytes"] == 240 << 20 for name in names)
            begun, start = len(rekindle.lines(names[0])), time.perf_counter()
            rekindle("kill", names[0], "--signal", "10")
            rekindle.wait(lambda: not rekindle.sandbox(names[0])["shared_bytes"] and len(rekindle.lines(names[0])) > begun + 2, "the mending")
            row["mended_s"].append(time.perf_counter() - start)
            seen = len(rekindle.lines(names[1]))
            rekindle.wait(lambda: len(rekindle.lines(names[1])) > seen + 2, "the other")
            row["ok"] &= rekindle.sandbox(names[0])["pid"] > 0 and rekindle.sandbox(names[1])["shared_bytes"] == 240 << 20
            # So that the next ones share it too.
            row["unwritten_then"] = relearn(rekindle)
            rekindle("kill", *names)
        row["warnings"] = warnings(work / "mend-state")
    return row


def relearn(rekindle):
    """Forgets that the buffer was written to, once that was learned."""
    path = Path(rekindle.json("inspect", "model")["path"]) / "unwritten.json"
    known = lambda: len(json.loads(path.read_text())["parts"])
    with contextlib.suppress(TimeoutError):
        rekindle.wait(lambda: known() == 0, "the lesson", 3)
    found = known()
    path.unlink()
    rekindle("profile", "model", "--", "sleep", "0.3")
    return found


def measure(binaries, name, work, rounds, chosen=None, before=None):
    """The image lies on the disk that `work` is on; a daemon for each way, the first restore of each not counted. Ways that
    are not chosen stay as they were measured before."""
    trigger, image, state = work / f"{name}-cache-ask", f"{name}-cached", work / f"{name}-cache-state"
    row = {"ok": True, "ways": dict((before or {}).get("ways", {}))}
    with Rekindle(gpu="nvidia", binaries=binaries, state=state) as rekindle:
        start_service(rekindle, image, name, trigger)
        row["warm_answer_s"], expected = ask(trigger, 150)
        rekindle("checkpoint", image, "--to", image, "--stop")
    for way, limits in LIMITS.items():
        if chosen and way not in chosen:
            continue
        if way == "page cache":
            # The way before it has dropped them.
            read_whole(state / "store")
            wait_quiet(state)
        with Rekindle(gpu="nvidia", binaries=binaries, state=state, **limits) as rekindle:
            one = row["ways"][way] = {"restores": []}
            if way == "shared":
                one["unwritten"] = learn(rekindle, image, trigger)
            for n in range(rounds + 1):
                with contextlib.suppress(TimeoutError):
                    wait_for_worker(rekindle)
                one["caches"] = wait_filled(rekindle) if limits else None
                if way == "disk":
                    drop(state / "store")
                measured, answer = restore(rekindle, image, f"{image}-{n}", trigger, work)
                row["ok"] &= answer == expected
                if n:
                    one["restores"].append(measured)
            if "GPU_CACHE" in " ".join(limits):
                one["further"] = further(rekindle, image, trigger, expected)
                row["ok"] &= one["further"]["ok"]
            one["warnings"] = warnings(state)
            for key in ("running_s", "first_answer_s", "gb_per_s"):
                one[key] = statistics.median(each[key] for each in one["restores"])
    return row
