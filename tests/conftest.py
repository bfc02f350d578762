"""Fixtures: a Rekindle of one's own, a disk that is soon full."""

import gc
import os
import subprocess

import pytest
from rekindle import Rekindle

# All that is collected stays until the end: nobody needs to look again and again whether it is garbage.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture
def rekindle():
    with Rekindle() as instance:
        yield instance


class Disk:
    """A file system with little room."""

    def __init__(self, path):
        self.path, self.file = path, path / "fill"

    def fill(self, left=0):
        """Leaves so many bytes of room."""
        with self.file.open("wb") as file:
            room = os.statvfs(self.path)
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize - left)

    def empty(self):
        self.file.unlink()


@pytest.fixture
def disk(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m,mode=0700", "rekindle-test", tmp_path]).returncode:
        pytest.skip("no file system may be mounted here")
    yield Disk(tmp_path)
    subprocess.run(["umount", "--lazy", tmp_path], check=True)
