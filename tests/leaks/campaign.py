"""Many restores in a row and many sandboxes at once, after which all is as it was before."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from interleavings.machine import daemon
from leaks.holdings import STEADY, files_of_sandboxes, files_on_disk, held, on_disk
from rekindle import processes

INSTANCE = Path(__file__).parent / "instance.py"
# What restores leave once, as what is learned of an image, is there after so many.
WARM_UP = 10
# How many commands begin sandboxes at once.
HANDS = 4
# The allocator keeps for the next what threads have worked with.
ALLOWED_MEMORY = 8 << 20
# A file system in memory makes a page where a hole of a mapped file is read for the first time. One for each restore is more.
ALLOWED_HOLES = 16 << 10


class Campaign:
    """On a Rekindle of its own, with the image of one program."""

    def __init__(self, rekindle):
        self.rekindle = rekindle
        self.go = rekindle.root / "go"
        self.restore_ms = []
        self.peak = {}
        rekindle.run("program", sys.executable, INSTANCE, self.go)
        assert rekindle.wait_lines("program", 1) == ["ready"], rekindle.lines("program")
        rekindle("checkpoint", "program", "--to", "image", "--stop")

    def row(self, count):
        """Restores, each of which is ended before the next."""
        for _ in range(count):
            began = time.monotonic()
            self.rekindle.restore("image", "again")
            self.restore_ms.append((time.monotonic() - began) * 1e3)
            self.rekindle("kill", "again")

    def crowd(self, count):
        """Sandboxes beside each other. Every second one is killed; the others find all that they should have, and end."""
        names = [f"of-many-{number}" for number in range(count)]
        with ThreadPoolExecutor(HANDS) as hands:
            list(hands.map(lambda name: self.rekindle.restore("image", name), names))
            running = [row["name"] for row in self.rekindle.sandboxes() if row["state"] == "running"]
            assert sorted(running) == sorted(names), f"{len(running)} of {count} run"
            pid = daemon(self.rekindle)
            self.peak = {
                "sandboxes": len(running),
                "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "processes": len(processes(self.rekindle.root)),
            }
            self.rekindle("kill", *names[1::2])
            self.go.touch()
            ended = list(hands.map(self.rekindle.wait_end, names[::2]))
            codes = {row["exit_code"] for row in self.rekindle.sandboxes() if row["name"] in names[::2]}
        self.go.unlink()
        assert ended == [["ok"]] * len(ended) and codes == {0}, codes

    def files(self):
        """Where each file lies, and its size."""
        on_disk = ((path, found.st_size) for path, found in files_on_disk(self.rekindle))
        return [*map(str, files_of_sandboxes(self.rekindle)), *(f"{path}: {size} bytes" for path, size in on_disk)]

    def settled(self, before=None):
        """What is held once all that has ended is forgotten, and the same for some time; if that can be, no more than before."""
        rekindle, seen = self.rekindle, []
        rekindle("prune")

        def is_settled():
            pool = rekindle.json("ps")["pool"]
            now, memory = held(rekindle)
            seen.append((now, memory))
            ready = pool and all(spare["ready"] for spare in pool) and now["processes"] == 1 + len(pool)
            is_more = before and any(count > before[what] for what, count in now.items())
            is_steady = [then for then, _ in seen[-STEADY:]] == [now] * STEADY
            return ready and is_steady and not is_more and not now["unreaped"]

        try:
            rekindle.wait(is_settled, "all to settle")
        except TimeoutError:
            # What stays for so long is left behind, as the report will say.
            if not before:
                raise AssertionError(f"this stays: {seen[-1]}, {processes(rekindle.root)}") from None
        now, memory = seen[-1]
        return {**now, **on_disk(rekindle), "memory of the daemon": memory}


def run(rekindle, restores, sandboxes):
    """The campaign, and what it has found."""
    campaign = Campaign(rekindle)
    campaign.row(WARM_UP)
    campaign.crowd(sandboxes)
    before, files = campaign.settled(), campaign.files()
    campaign.restore_ms.clear()
    marks = [time.monotonic()]
    campaign.row(restores)
    marks.append(time.monotonic())
    campaign.crowd(sandboxes)
    marks.append(time.monotonic())
    after = campaign.settled(before)
    allowed = {"memory of the daemon": ALLOWED_MEMORY, "bytes on disk": ALLOWED_HOLES}
    leaked = {what: count - before[what] for what, count in after.items() if count - before[what] > allowed.get(what, 0)}
    times = sorted(campaign.restore_ms)
    return {
        "restores": restores,
        "sandboxes": sandboxes,
        "before": before,
        "after": after,
        "allowed": allowed,
        "leaked": leaked,
        "new_files": sorted(set(campaign.files()) - set(files)) if leaked else [],
        "peak": campaign.peak,
        "restore_ms": {"median": round(times[len(times) // 2], 1), "longest": round(times[-1], 1)},
        "seconds": {"restores": round(marks[1] - marks[0], 1), "sandboxes": round(marks[2] - marks[1], 1)},
    }
