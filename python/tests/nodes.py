"""Programs that sum declared numbers, for tests of how those come to the GPU."""

import contextlib
import os
import signal
from pathlib import Path

import numpy
import rekindle as package
from conftest import APPS, Deployer, begun

# Two pieces of what is fetched at once, and a bit.
COUNT = (17 << 20) // 4

SUM = """
import sys
sys.path.insert(0, {apps!r})
from summing import Summing

@app.cls(gpu="emulated", share={share!r}, concurrency=2, sleep_window=0, data={{"numbers": rekindle.Data({url!r}, dtype="int32", shape={count})}})
class Sum:
    @rekindle.enter()
    def begin(self):
        self.gpu = Summing()

    @rekindle.method()
    def total(self, mark=None):
        return self.gpu.few(self.numbers.load(), mark)

    @rekindle.method()
    def array(self):
        return self.numbers.load()
"""


def numbers(seed, count=COUNT):
    return numpy.random.default_rng(seed).integers(0, 1 << 20, count, dtype="int32")


def expected(array):
    few = array[:: array.size // 64]
    return int(few.sum(dtype="int32"))


class Node:
    """A Rekindle, with a class that sums declared numbers."""

    def __init__(self, rekindle):
        self.rekindle, self.deployer = rekindle, Deployer(rekindle)

    def deploy(self, url, count=COUNT, share=False):
        source = SUM.format(apps=str(APPS), url=url, count=count, share=share)
        self.deployer.app("sums", source)
        return package.Cls.from_name("sums", "Sum")()

    def waiting(self, sums):
        """A call whose kernel waits for the array, pieces of which are held (`data-piece:hang`)."""
        launched = Path(self.deployer.mark("launched"))
        call = sums.total.spawn(str(launched))
        self.rekindle.reached("data-piece")
        # Until then the daemon alone has asked for the array, ahead.
        self.rekindle.wait(launched.exists, "the launch")
        self.rekindle.wait(lambda: "is wanted again" in self.log(), "the program to have asked for it")
        return call

    def file(self, array):
        place = self.rekindle.root / "numbers"
        place.write_bytes(array.tobytes())
        return place, place.as_uri()

    def log(self):
        return (self.rekindle.state / "logs/memory.log").read_text()

    def fetched(self):
        return self.log().count("fetched ")

    def end_instance(self):
        self.rekindle("kill", "sums-Sum-1")
        self.deployer.come_to("sums-Sum")

    def end_daemon(self):
        """As a crash would, with the memory daemon. The next command starts another."""
        (memory,) = self.memory_daemons()
        status = Path(f"/proc/{memory}/status").read_text()
        (parent,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
        os.kill(parent, signal.SIGKILL)
        self.rekindle.wait(lambda: memory not in self.memory_daemons(), "the memory daemon's end")

    def memory_daemons(self):
        """Of this Rekindle: their log is below its state."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (place / "cmdline").read_bytes().split(b"\0")
                if words[1:2] == [b"memory"] and os.readlink(place / "fd/2").startswith(str(self.rekindle.state)):
                    found.append(int(place.name))
        return found


@contextlib.contextmanager
def node_with(**environment):
    with begun(**environment) as rekindle:
        yield Node(rekindle)
