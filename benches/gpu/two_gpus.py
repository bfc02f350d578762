"""Driver mode with two GPUs: one program on both, brought back as it was and with the GPUs swapped, beside the driver's
checkpoint with CRIU alone; and how far the driver takes NCCL.
"""

import os
import subprocess
import time

import driver_mode
from images import ask
from programs import Native, label, served_program
from rekindle import CommandError

# The programs, with variables of their own.
PROGRAMS = {
    "copy-two": {},
    "separate-two-large": {},
    "copy-two-large, expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "copy-two-large": {},
}
# Rekindle refuses a process with gigabytes on several GPUs unless it is told that it has no peer access.
ALLOWED = {"separate-two-large"}
# See `driver_mode.measure`.
COUNTS = (2, 1, 1)
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
# What NCCL may do between two GPUs, in variables of its own. Linux 6.16 and newer needs CRIU 4.2 for its connections.
NCCL = {
    "nccl-threads": {},
    "nccl-threads, sockets": SOCKETS,
    "nccl-processes": {},
    "nccl-processes, no peer access": {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"},
    "nccl-processes, sockets": SOCKETS,
}


def uuids():
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()


def start(work):
    """All of them: they take long to start, and not longer beside each other."""
    return {name: driver_mode.start(name, work, **variables) for name, variables in PROGRAMS.items()}


def measure(rekindle, name, work, memory, started):
    def then(row, image, trigger, expected):
        first, second = uuids()[:2]
        start = time.perf_counter()
        rekindle.json("restore", image, "--name", "swapped", "-d", "--gpu-map", f"{first}={second},{second}={first}")
        _, answer = ask(trigger)
        row["swapped"] = {"first_answer_s": time.perf_counter() - start}
        row["reached"] = "restored, also with the GPUs swapped"
        rekindle("kill", "swapped")
        return answer == expected

    # A daemon has the environment that it was started with.
    rekindle("shutdown", check=False)
    rekindle.environment["REKINDLE_TUNING"] = "driver.peers=allow" if name in ALLOWED else ""
    return driver_mode.measure(rekindle, name, work, memory, started, COUNTS, then)


def start_nccl(work):
    """All of them: they take long to start, and not longer beside each other."""
    started = {}
    for number, (name, variables) in enumerate(NCCL.items()):
        trigger = work / f"nccl-{number}-ask"
        command = served_program(name, trigger)
        environment = {**os.environ, **variables, "NCCL_NVLS_ENABLE": "0"}
        started[name] = (Native(command, work / f"nccl-{number}.log", start_new_session=True, env=environment), trigger)
    return started


def measure_nccl(rekindle, name, program, trigger):
    """How far it is taken: every step that went well, and what the next one said."""
    row, image = {"ok": True, "reached": "nothing"}, label(name)
    try:
        program.wait_ready(60)
        _, expected = ask(trigger, 20)
        row["reached"] = "ran"
        taken = lambda then: rekindle.json("checkpoint", "--pid", program.process.pid, "--mode", "driver", "--to", image, then, limit=60)
        row["gpu_processes"] = taken("--leave-running")["gpu_processes"]
        row["reached"] = "checkpointed"
        if ask(trigger, 20)[1] != expected:
            raise RuntimeError("after the checkpoint it gave another answer")
        row["reached"] = "went on"
        rekindle("rmi", image)
        # A program that is killed leaves its ports to the kernel for a while; one that is taken and ended does not.
        row["report"] = taken("--stop")
        row["checkpoint_s"] = row["report"]["total_us"] / 1e6
        written = program.log.stat().st_size
        end_tree(program)
        os.truncate(program.log, written)
        start = time.perf_counter()
        rekindle.json("restore", image, "--name", image, "-d", limit=60)
        row |= {"reached": "restored", "running_s": time.perf_counter() - start}
        _, answer = ask(trigger, 20)
        row["first_answer_s"] = time.perf_counter() - start
        if answer != expected:
            raise RuntimeError("after the restore it gave another answer")
        row["reached"] = "answered after the restore"
        rekindle("kill", image)
    except (CommandError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
        row["then"] = str(error)[-700:]
        if rekindle.json("ps")["sandboxes"] and row["reached"] == "restored":
            rekindle("kill", image, check=False)
    finally:
        end_tree(program)
        rekindle("rmi", image, check=False)
    return row


def end_tree(program):
    """With the second process, which would wait for the first one for ever. Both are in a session of their own."""
    pid = program.process.pid
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.getsid(int(entry)) == pid:
                os.kill(int(entry), 9)
        except ProcessLookupError:
            pass
    program.end()
