"""The published way, for comparison: the driver's own checkpoint of the process, then CRIU; and back.

The program runs without Rekindle. Each restore is in a pid namespace of its own.
"""

import ctypes
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from images import ask
from programs import Native, label, served_program

DRIVER_STEPS = ("Lock", "Checkpoint", "Restore", "Unlock")


class Driver:
    """`cuCheckpointProcess*` on other processes, each step timed."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ.get("REKINDLE_LIBCUDA", "libcuda.so.1"))
        self.check("cuInit", self.library.cuInit(0))

    @staticmethod
    def check(what, code):
        if code:
            raise RuntimeError(f"{what} failed with error {code}")

    def step(self, name, pid):
        assert name in DRIVER_STEPS
        start = time.perf_counter()
        self.check(name, getattr(self.library, f"cuCheckpointProcess{name}")(ctypes.c_int(pid), None))
        return time.perf_counter() - start


def criu_command():
    """The private CRIU that Rekindle would use, else the system's."""
    private = Path(os.environ.get("REKINDLE_CRIU_DIR", Path(__file__).resolve().parents[2] / ".build/criu"))
    loader = private / "lib/ld-linux-x86-64.so.2"
    if loader.exists():
        return [str(loader), "--inhibit-cache", "--library-path", str(private / "lib"), str(private / "criu.bin")]
    return ["criu"]


def children(pid):
    return [int(child) for task in os.listdir(f"/proc/{pid}/task") for child in open(f"/proc/{pid}/task/{task}/children").read().split()]


def run_criu(*arguments, limit=120):
    done = subprocess.run([*criu_command(), *map(str, arguments)], capture_output=True, text=True, timeout=limit)
    if done.returncode:
        raise RuntimeError(f"criu {arguments[0]} failed: {(done.stdout + done.stderr).strip()[-600:]}")


def restore(images, log):
    """CRIU's restore in a new pid namespace: its process, and the program's pid seen from here."""
    log.unlink(missing_ok=True)
    space = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    command = [*space, *criu_command(), "restore", "-D", str(images), "-o", str(log), "-v4"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # Only at this level CRIU says that it is done.
    end = time.monotonic() + 60
    while "Restore finished successfully" not in (log.read_text(errors="replace") if log.exists() else ""):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            process.wait()
            raise RuntimeError(f"criu restore failed: {log.read_text(errors='replace')[-600:]}")
        time.sleep(0.0005)
    (criu,) = children(process.pid)
    return process, children(criu)[0]


def start(name, work, way="driver", **variables):
    """The program, and the file that it waits for."""
    trigger, log = work / f"{label(name)}-{way}-ask", work / f"{label(name)}-{way}.log"
    environment = {**os.environ, **variables}
    return Native(served_program(name, trigger), log, start_new_session=True, env=environment), trigger


def measure(name, work, memory, rounds=3, started=None, row=None):
    """The row is filled as far as it goes, so that a failure leaves what was measured before it."""
    row = {} if row is None else row
    driver = Driver()
    images = memory / f"driver-{label(name)}"
    images.mkdir()
    try:
        return measure_in(images, driver, started or start(name, work), rounds, row)
    finally:
        shutil.rmtree(images)


def take(driver, pid, images, *options):
    """One checkpoint, after which the program has ended, or stands still with `--leave-running`."""
    checkpoint = {"driver_lock_s": driver.step("Lock", pid), "driver_checkpoint_s": driver.step("Checkpoint", pid)}
    began = time.perf_counter()
    run_criu("dump", "-t", pid, "-D", images, "-o", "dump.log", "-v2", *options)
    checkpoint["criu_dump_s"] = time.perf_counter() - began
    checkpoint["total_s"] = sum(checkpoint.values())
    return checkpoint


def checkpoint(name, memory, started):
    """One checkpoint and nothing more."""
    program, trigger = started
    driver = Driver()
    images = memory / f"driver-{label(name)}"
    images.mkdir()
    try:
        program.wait_ready()
        ask(trigger)
        return take(driver, program.process.pid, images)
    finally:
        program.end()
        shutil.rmtree(images)


def measure_in(images, driver, started, rounds, row):
    program, trigger = started
    try:
        program.wait_ready()
        row["warm_answer_s"], expected = ask(trigger)
        row["reached"] = "ran"
        checkpoint = take(driver, program.process.pid, images)
    finally:
        program.end()
    size = sum(path.stat().st_blocks * 512 for path in images.iterdir())
    row |= {"reached": "checkpointed", "checkpoint": checkpoint, "image_bytes": size, "restores": [], "first_answer_s": None}
    # CRIU wants the program's output as long as it was.
    written, same = program.log.stat().st_size, True
    for _ in range(rounds):
        os.truncate(program.log, written)
        began = time.perf_counter()
        process, pid = restore(images, images / "restore.log")
        try:
            one = {"criu_restore_s": time.perf_counter() - began}
            one["driver_restore_s"] = driver.step("Restore", pid)
            one["driver_unlock_s"] = driver.step("Unlock", pid)
            one["running_s"] = time.perf_counter() - began
            _, answer = ask(trigger)
            one["first_answer_s"] = time.perf_counter() - began
        finally:
            process.kill()
            process.wait()
        same = same and answer == expected
        row["restores"].append(one)
        row["reached"] = "restored"
        time.sleep(0.5)
    if row["restores"]:
        row["first_answer_s"] = statistics.median(one["first_answer_s"] for one in row["restores"])
    row["ok"] = same
    return row
