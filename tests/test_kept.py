"""What CRIU does not keep of a program, and Rekindle does: set up, checkpoint, stop, restore, verify. Or it is refused by name."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from rekindle import CommandError

PROGRAMS = Path(__file__).parent / "kept"


class Native:
    """A program that Rekindle has not started."""

    def __init__(self, rekindle, script, *arguments):
        command = [sys.executable, PROGRAMS / script, rekindle.root / "go", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        assert self.process.stdout.readline() == b"ready\n"
        proc = Path(f"/proc/{self.process.pid}")
        mapped = [line.split() for line in (proc / "maps").read_text().splitlines() if "/dev/shm/" in line]
        opened = [link.stat() for link in (proc / "fd").iterdir() if str(link.readlink()).startswith("/dev/shm/")]
        self.shared = {int(words[4]) for words in mapped} | {found.st_ino for found in opened}

    def __enter__(self):
        return self.process.pid

    def __exit__(self, *_):
        subprocess.run(["pkill", "-9", "--session", str(self.process.pid)], check=False)
        self.process.wait()
        for left in Path("/dev/shm").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if left.lstat().st_ino in self.shared:
                    left.unlink()


def survives(rekindle, script, *arguments, native=False):
    """Through a checkpoint while it goes on, one at which it ends, and one of what was restored; all warnings."""
    go, warnings = rekindle.root / "go", []

    def checkpoint(source, image, how):
        warnings.extend(rekindle.json("checkpoint", *source, "--to", image, how)["warnings"])

    def take(source):
        checkpoint(source, "running", "--leave-running")
        checkpoint(source, "stopped", "--stop")

    if native:
        with Native(rekindle, script, *arguments) as pid:
            take(["--pid", pid])
    else:
        rekindle.run("first", sys.executable, PROGRAMS / script, go, *arguments)
        assert rekindle.wait_lines("first", 1)[:1] == ["ready"], rekindle.lines("first")
        take(["first"])
    restored = {"a": "running", "b": "stopped", "c": "stopped", "d": "again"}
    for name, image in restored.items():
        rekindle("verify", image)
        warnings += rekindle.restore(image, name)["warnings"]
        if name == "c":
            checkpoint(["c"], "again", "--leave-running")
    go.touch()
    for name in restored:
        # Instances of one image share files outside: the first to end may have removed them.
        assert "ok" in rekindle.wait_end(name), (name, rekindle.lines(name))
    return warnings


@pytest.mark.parametrize("native", [False, True], ids=["sandbox", "driver"])
def test_files_that_have_lost_the_name_they_were_opened_by(rekindle, native):
    place = rekindle.root / "place"
    (place / "elsewhere").mkdir(parents=True)
    survives(rekindle, "lost_names.py", place, native=native)
    assert sorted(path.name for path in place.rglob("*")) == ["elsewhere", "library", "result"]


@pytest.mark.parametrize("native", [False, True], ids=["sandbox", "driver"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_semaphores_of_processes_that_were_not_forked(rekindle, method, native):
    survives(rekindle, "spawned.py", method, native=native)


WRITER = """
import os, sys, time
place = sys.argv[1]
fd = os.open(place + "/new", os.O_RDWR | os.O_CREAT)
os.link(place + "/new", place + "/elsewhere/result")
os.unlink(place + "/new")
n = 0
while True:
    print(n, flush=True)
    n += 1
    time.sleep(0.02)
"""


def test_a_file_that_would_be_another_one_is_refused_by_name(rekindle):
    place = rekindle.root / "place"
    (place / "elsewhere").mkdir(parents=True)
    rekindle.run("writer", sys.executable, "-c", WRITER, place)
    before = len(rekindle.wait_lines("writer", 1))
    with pytest.raises(CommandError, match=f"opened as {place}/new, which has lost that name"):
        rekindle("checkpoint", "writer", "--to", "image", "--stop")
    rekindle.wait_lines("writer", before + 3)
    assert not rekindle.json("images")["images"]
    # With a name beside the old one all is well.
    (place / "found").hardlink_to(place / "elsewhere/result")
    rekindle("checkpoint", "writer", "--to", "image", "--stop")
    rekindle.restore("image", "again")
    rekindle.wait_lines("again", 1)
    assert sorted(path.name for path in place.iterdir()) == ["elsewhere", "found"]
