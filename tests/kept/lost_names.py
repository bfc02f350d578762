"""Files whose opened names are gone, while other links to them are left."""

import fcntl
import mmap
import os
from pathlib import Path

from kept import main


def setup(place):
    place = Path(place)
    elsewhere = place / "elsewhere"

    def lose(first, other, flags):
        """A descriptor of a file that was opened under its first name and has another one now."""
        first.write_bytes(b"0" * 20_000)
        fd = os.open(first, flags)
        os.link(first, other)
        first.unlink()
        return fd

    beside = lose(place / "new", place / "result", os.O_RDWR)
    again = os.open(place / "result", os.O_RDWR)
    os.pwrite(beside, b"before", 0)
    mapped = mmap.mmap(beside, 0)
    os.lseek(beside, 7, 0)

    copied = lose(place / "library", elsewhere / "library", os.O_RDONLY)
    plain = mmap.mmap(copied, 0, prot=mmap.PROT_READ)
    os.lseek(copied, 19_990, 0)
    second = os.open(f"/proc/self/fd/{copied}", os.O_RDONLY)

    names = [Path(f"/dev/shm/kept-{os.getpid()}-{name}") for name in ("one", "two")]
    names[0].write_text("before")
    names[1].hardlink_to(names[0])
    kept = [open(name, "r+") for name in names]

    def verify():
        # The file is one for all that are restored.
        turn = os.open(place / "elsewhere", os.O_RDONLY)
        fcntl.flock(turn, fcntl.LOCK_EX)
        assert os.path.sameopenfile(beside, again)
        assert os.pread(again, 6, 0) == b"before"
        os.pwrite(again, b"after!", 0)
        assert mapped[:6] == b"after!"
        assert os.read(beside, 3) == b"000"
        assert (place / "result").read_bytes()[:6] == b"after!"
        os.pwrite(again, b"before", 0)
        assert os.path.sameopenfile(copied, second)
        assert os.read(copied, 100) == b"0" * 10
        assert plain[:] == os.pread(second, 20_000, 0) == b"0" * 20_000
        names[1].write_text("both")
        assert names[0].samefile(names[1]) and names[0].read_text() == kept[0].read() == "both"

    return verify


main(setup)
