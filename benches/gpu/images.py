"""Images in memory: how fast the GPU half goes both ways, and a whole restore up to the first answer."""

import contextlib
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from programs import python_program, wait_for


@contextlib.contextmanager
def memory_directory():
    """A directory in memory, in huge pages where a file system for that can be mounted; and what it is."""
    path = Path(tempfile.mkdtemp(prefix="rekindle-images-"))
    mount = ["mount", "-t", "tmpfs", "-o", "huge=always,size=1t,mode=700", "tmpfs", str(path)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    if not mounted:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix="rekindle-images-", dir="/dev/shm"))
    try:
        yield path, "tmpfs, huge=always" if mounted else "tmpfs"
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)])
        shutil.rmtree(path, ignore_errors=True)


def ask(trigger: Path, limit=60):
    """Seconds until the next answer, and the answer."""
    count, start = len(answers(trigger)), time.perf_counter()
    trigger.touch()
    while len(answers(trigger)) <= count:
        if time.perf_counter() - start > limit:
            raise TimeoutError(f"no answer within {limit} s")
        time.sleep(0.0005)
    return time.perf_counter() - start, answers(trigger)[-1]


def answers(trigger: Path):
    """All answers so far of the programs that wait for the file."""
    file = Path(f"{trigger}.answers")
    return file.read_text().splitlines() if file.exists() else []


def rates(phases):
    """The transfer of buffers alone, and the time of all that the GPU half needs."""
    half = [row for row in phases if row["lane"] == "gpu half"]
    memory = next(row for row in half if row["name"] in ("GPU memory", "drain"))
    begin, end = min(row["start_us"] for row in half), max(row["start_us"] + row["duration_us"] for row in half)
    seconds = memory["duration_us"] / 1e6
    return {"bytes": memory["bytes"], "seconds": seconds, "gb_per_s": memory["bytes"] / 1e9 / seconds, "gpu_half_ms": (end - begin) / 1e3}


def wait_for_worker(rekindle, count=1):
    """Restores are measured as they are after a pause: workers wait."""
    of_gpu = lambda: (one for one in rekindle.json("ps")["pool"] if one["gpu"].startswith(rekindle.gpu))
    ready = lambda: sum(one["ready"] for one in of_gpu())
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: ready() >= count, 10 + 2 * count, "workers")


def measure(rekindle, name, work, checkpoints=5, restores=10):
    """Checkpoints of a warm program, then restores of the last, each asked for an answer."""
    trigger, label = work / f"{name}-serve-ask", f"serve-{name}"
    rekindle.run(label, *python_program(name, "--serve", trigger))
    wait_for(lambda: "ready" in rekindle.lines(label) or not rekindle.sandbox(label)["pid"], 120, f"sandboxed {name}")
    warm_s, expected = ask(trigger)
    row = {"ok": False, "warm_answer_s": warm_s, "checkpoints": [], "restores": []}
    for n in range(checkpoints):
        last = n == checkpoints - 1
        image = f"{name}-served-{n}"
        report = rekindle.json("checkpoint", label, "--to", image, "--stop" if last else "--leave-running")
        row["checkpoints"].append({**rates(report["phases"]), "report": report})
        if not last:
            rekindle("rmi", image)
    row["checkpoint_gb_per_s"] = statistics.median(one["gb_per_s"] for one in row["checkpoints"])
    row["sizes"] = rekindle.json("inspect", image).get("sizes")
    same = True
    try:
        for n in range(restores):
            restored = f"{label}-{n}"
            wait_for_worker(rekindle)
            start = time.perf_counter()
            report = rekindle.restore(image, restored)
            running = time.perf_counter() - start
            _, answer = ask(trigger)
            first = time.perf_counter() - start
            again, _ = ask(trigger)
            same = same and answer == expected
            times = {"running_s": running, "first_answer_s": first, "warm_answer_s": again}
            # Buffers load while the program runs, so that the trace has more than the report.
            report["phases"] = rekindle.json("trace", restored, "--svg", work / "trace.svg")["traces"][-1]["phases"]
            row["restores"].append({**rates(report["phases"]), **times, "report": report})
            rekindle("kill", restored)
    except Exception as error:
        return {**row, "error": str(error)}
    rekindle("rmi", image)
    row["restore_gb_per_s"] = statistics.median(one["gb_per_s"] for one in row["restores"])
    row["first_answer_s"] = statistics.median(one["first_answer_s"] for one in row["restores"])
    return {**row, "ok": same}
