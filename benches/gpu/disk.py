"""An image that only the disk has: how fast its GPU memory is loaded, beside what the same disk gives for the same files in the
same minute, past the page cache (`O_DIRECT`) and through it, with so many reads of a whole file under way at once."""

import contextlib
import mmap
import os
import statistics
import threading
import time

from caches import drop, read_bytes, restore, wait_quiet, warnings
from images import ask, wait_for_worker
from programs import start_service
from rekindle import Rekindle

# What is read at once: threads, and whether they read past the page cache.
WAYS = [(4, True), (8, True), (16, True), (4, False), (12, False)]
CHUNK = 2 << 20
# Of the image's chunks every third measures the disk.
STEP = 3


def chunks(state):
    return sorted(path for path in (state / "store/chunks").rglob("*") if path.is_file() and path.stat().st_size == CHUNK)


def rate(paths, threads, direct):
    """GB/s of reading whole files, so many at once."""
    rest, lock = iter(paths), threading.Lock()
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)

    def work():
        memory = mmap.mmap(-1, CHUNK)
        memory.write(bytes(CHUNK))
        while True:
            with lock:
                path = next(rest, None)
            if path is None:
                return
            descriptor = os.open(path, flags)
            assert os.preadv(descriptor, [memory], 0) == CHUNK, path
            os.close(descriptor)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return len(paths) * CHUNK / 1e9 / (time.perf_counter() - start)


def measure(binaries, name, work, rounds):
    trigger, image, state = work / f"{name}-disk-ask", f"{name}-on-disk", work / f"{name}-disk-state"
    row = {"ok": True, "restores": [], "again": [], "disk_gb_per_s": {}}
    with Rekindle(gpu="nvidia", binaries=binaries, state=state) as rekindle:
        start_service(rekindle, image, name, trigger)
        row["warm_answer_s"], expected = ask(trigger)
        rekindle("checkpoint", image, "--to", image, "--stop")
        files = chunks(state)
        for n in range(rounds):
            for place in ("restores", "again"):
                with contextlib.suppress(TimeoutError):
                    wait_for_worker(rekindle)
                wait_quiet(state)
                if place == "restores":
                    drop(state / "store")
                before = read_bytes(state)
                measured, answer = restore(rekindle, image, f"{place}-{n}", trigger, work)
                measured["disk_read_bytes"] = read_bytes(state) - before
                loading = next(phase for phase in measured["report"]["phases"] if phase["name"] == "GPU memory")
                measured["disk_gb_per_s"] = measured["from"].get("disk", 0) / 1e3 / loading["duration_us"]
                row["ok"] &= answer == expected
                row[place].append(measured)
            for threads, direct in WAYS:
                drop(state / "store")
                found = rate(files[n % STEP :: STEP], threads, direct)
                row["disk_gb_per_s"].setdefault(f"{threads} {'direct' if direct else 'buffered'}", []).append(found)
        row["warnings"] = warnings(state)
    best = max(statistics.median(rates) for rates in row["disk_gb_per_s"].values())
    row["gb_per_s"] = statistics.median(one["disk_gb_per_s"] for one in row["restores"])
    row["ratio"] = row["gb_per_s"] / best
    return row
