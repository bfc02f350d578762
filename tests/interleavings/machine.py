"""What /proc tells of processes: trees, who holds them still, whose they are."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PTRACE_SEIZE = 0x4206
# Waits for those too that are no children.
WALL = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


def read(pid, name):
    """Nothing of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def status(pid, field):
    lines = (line.split(":", 1) for line in read(pid, "status").splitlines())
    return next((value.strip() for name, value in lines if name == field), "")


def pids():
    return {int(pid) for pid in os.listdir("/proc") if pid.isdigit()}


def is_alive(pid):
    return status(pid, "State")[:1] not in ("", "Z", "X")


def began(pid):
    """Tells a process from another that got its pid later."""
    after = read(pid, "stat").rpartition(") ")[2].split()
    return int(after[19]) if after else None


def threads(pid):
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def tree(pid):
    found = [pid]
    for parent in found:
        for thread in threads(parent):
            found += [int(child) for child in read(parent, f"task/{thread}/children").split()]
    return [pid for pid in found if is_alive(pid)]


def held_by(pid):
    """What keeps a process from running, if something does."""
    for thread in threads(pid):
        tracer = status(f"{pid}/task/{thread}", "TracerPid")
        if tracer not in ("", "0"):
            return f"traced by {tracer} ({read(tracer, 'comm').strip()})"
        state = status(f"{pid}/task/{thread}", "State")
        if state[:1] in ("T", "t"):
            return state
    return None


@contextlib.contextmanager
def end_untold(pid):
    """Kills a process, of whose end its parent is told afterwards: whoever traces it is told first."""
    if libc.ptrace(PTRACE_SEIZE, pid, None, None):
        raise OSError(ctypes.get_errno(), f"process {pid} cannot be traced")
    os.kill(pid, signal.SIGKILL)
    try:
        yield
    finally:
        os.waitpid(pid, WALL)


def is_of(rekindle, words):
    return str(rekindle.root) in words or str(rekindle.run_root) in words


def daemon(rekindle):
    """The pid of the daemon that runs. By its words alone it is like a process that it is just starting."""
    return int((rekindle.state / "lock").read_text().split()[1])


def states(rekindle):
    """What each process waits for, thread by thread, and who traces it."""
    found = []
    for pid, words in processes_of(rekindle).items():
        threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")] if is_alive(pid) else []
        waits = [(thread, read(pid, f"task/{thread}/wchan"), status(f"{pid}/task/{thread}", "TracerPid")) for thread in threads]
        found.append((pid, " ".join(words)[:80], waits))
    return found


def processes_of(rekindle):
    """All with this Rekindle's places among their words or in their environment, and their descendants, with their words."""
    found = set()
    for pid in pids():
        if any(is_of(rekindle, read(pid, name)) for name in ("cmdline", "environ")):
            found.update(tree(pid))
    found.discard(os.getpid())
    return {pid: read(pid, "cmdline").split("\0") for pid in found if is_alive(pid)}
