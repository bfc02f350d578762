"""All that sandboxes could leave behind of a Rekindle: counted."""

import os
import stat
from pathlib import Path

from interleavings.machine import daemon
from rekindle import below, inside, processes

# What is the same at so many looks one after the other stays so.
STEADY = 20
# What is learned of an image, by the first few restores that rest for long enough, and while it is being written.
ADVICE = {"load-order.json", "first-pages.json", "unwritten.json", "advice.new"}


def unreaped(parent):
    """Children that have ended and whose parent has not asked how."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, above = path.read_bytes().rsplit(b")", 1)[1].split()[:2]
        except OSError:
            continue
        found += state == b"Z" and int(above) == parent
    return found


def files_of_sandboxes(rekindle):
    """What lies in memory, and what the disk has for those that run."""
    return [path for path, _ in below(rekindle.run_root, rekindle.state / "pages", rekindle.state / "dumps")]


def held(rekindle):
    """All of the daemon's and of what runs, but for the disk's; and the daemon's own memory."""
    pid = daemon(rekindle)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "processes": len(processes(rekindle.root)),
        "processes in sandboxes": len(inside(rekindle.run_root)),
        "unreaped": unreaped(pid),
        "mounts": sum(str(rekindle.root) in line or str(rekindle.run_root) in line for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "files": len(files_of_sandboxes(rekindle)),
        "bytes in memory": sum(found.st_blocks * 512 for _, found in below(rekindle.run_root)),
    }, int(status["RssAnon"].split()[0]) << 10


def files_on_disk(rekindle):
    """Of the state directory, but for the daemon's own log, which has a limit of its own, and for advice."""
    others = [(path, found) for path, found in below(rekindle.state) if path.name not in ADVICE and not path.name.startswith("daemon.log")]
    return [(path, found) for path, found in others if stat.S_ISREG(found.st_mode)]


def on_disk(rekindle):
    """How many files lie on the disk, and their bytes."""
    files = [found for _, found in files_on_disk(rekindle)]
    return {"files on disk": len(files), "bytes on disk": sum({found.st_ino: found.st_blocks * 512 for found in files}.values())}
