"""An image of a restored program has its unchanged pages in common with the image that it was restored from."""

import os
import sys
from pathlib import Path

import pytest
from rekindle import CommandError
from test_mapped_bytes import checked

PROGRAM = """
import hashlib, os, random, sys, time
random.seed(1)
kept = [random.randbytes(4096 * (1 + n % 40)) for n in range(1500)]
table = {n: str(n) for n in range(100_000)}
print("ready", flush=True)
for turn in range(1, 100):
    while not os.path.exists(f"{sys.argv[1]}/{turn}"):
        time.sleep(0.005)
    for n in range(turn * 10, turn * 10 + 5):
        kept[n] = random.randbytes(len(kept[n]))
    for n in range(turn, len(table), 9973):
        table[n] = "changed" * turn
    digest = hashlib.sha256(b"".join(kept))
    digest.update(repr(table).encode())
    print(turn, digest.hexdigest(), flush=True)
"""


MOVER = """
import ctypes, mmap, os, sys, time
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = c.mremap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
c.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
size, page = 8 << 20, 4096
expected = bytearray(b"".join(n.to_bytes(2, "little") * 2048 for n in range(size // page)))
def area():
    at = c.mmap(None, size, 3, 0x22, -1, 0)
    ctypes.memmove(at, bytes(expected), size)
    return at
areas = [area() for _ in range(3)]
def wait(turn):
    print(turn, flush=True)
    while not os.path.exists(f"{sys.argv[1]}/{turn}"):
        time.sleep(0.005)
wait(1)
for first in range(0, 2048, 256):
    changed = bytes([first // 256 + 1]) * (40 * page)
    expected[first * page : (first + 40) * page] = changed
    for at in areas:
        ctypes.memmove(at + first * page, changed, len(changed))
wait(2)
pieces = sum("/run/rekindle/pages" in line for line in open("/proc/self/maps"))
print("pieces", pieces, flush=True)
grown = c.mremap(areas[0], size, 2 * size, 1, None)
assert ctypes.string_at(grown, 2 * size) == bytes(expected) + bytes(size)
place = c.mmap(None, size, 0, 0x22, -1, 0)
moved = c.mremap(areas[1], size, size, 3, place)
assert moved == place and ctypes.string_at(moved, size) == bytes(expected)
shrunk = c.mremap(areas[2], size, size // 2, 1, None)
assert shrunk == areas[2] and ctypes.string_at(shrunk, size // 2) == bytes(expected[: size // 2])
print("ok", flush=True)
"""


@pytest.fixture
def turns(rekindle):
    """Starts the program, waits for its answers, and knows those of an uninterrupted run."""

    class Turns:
        def __init__(self):
            self.directory = rekindle.root / "turns"
            self.directory.mkdir()
            self.expected = []

        def start(self):
            for name in ("plain", "first"):
                rekindle.run(name, sys.executable, "-c", PROGRAM, self.directory)
                assert rekindle.wait_lines(name, 1) == ["ready"]

        def take(self, name, turn):
            """Whether the next answer is that of the uninterrupted run."""
            (self.directory / str(turn)).touch()
            expected = rekindle.wait_lines("plain", turn + 1)[turn]
            lines = lambda: [line for line in rekindle.lines(name) if line.startswith(f"{turn} ") and len(line) == len(expected)]
            rekindle.wait(lambda: lines() or not rekindle.sandbox(name)["pid"], f"answer {turn} of {name}")
            return lines() == [expected]

    return Turns()


def pages(rekindle, image):
    return [part for part in rekindle.json("inspect", image)["parts"] if part["kind"] == "cpu-pages"]


def own_bytes(rekindle, image):
    row = next(row for row in rekindle.json("images")["images"] if row["name"] == image)
    return row["sizes"]["stored"] - row["shared_bytes"], row["sizes"]["stored"]


def test_images_of_a_chain_share_and_do_not_grow(rekindle, turns):
    turns.start()
    rekindle("checkpoint", "first", "--to", "0", "--stop")
    files, mapped = [], []
    for turn in range(1, 7):
        rekindle.restore(str(turn - 1), f"run-{turn}")
        assert turns.take(f"run-{turn}", turn)
        rekindle("checkpoint", f"run-{turn}", "--to", str(turn), "--stop")
        own, whole = own_bytes(rekindle, str(turn))
        assert own < whole / 10, f"turn {turn}: {own} of {whole}"
        files.append(len(pages(rekindle, str(turn))))
        mapped.append(Path(rekindle.json("inspect", str(turn))["path"], "cpu/mm-1000.img").stat().st_size)
    # An earlier one and two more, and the new one, of each kind.
    assert max(files) <= 8 and max(mapped) < 2 * mapped[0], (files, mapped)
    # Every image stands for itself.
    rekindle("rmi", *map(str, range(6)))
    assert rekindle.json("verify", "6")["sound"]
    rekindle.restore("6", "last")
    assert turns.take("last", 7)
    assert own_bytes(rekindle, "6")[0] == own_bytes(rekindle, "6")[1]
    rekindle("kill", "last")
    assert rekindle.json("rmi", "6")["freed_bytes"] > 10 << 20


def test_two_images_from_one_share_it(rekindle, turns):
    turns.start()
    rekindle("checkpoint", "first", "--to", "base", "--stop")
    for name in "ab":
        rekindle.restore("base", name)
    assert turns.take("a", 1) and turns.take("b", 1)
    for name in "ab":
        rekindle("checkpoint", name, "--to", f"app {name}", "--leave-running")
    origins = {part["from"] for name in "ab" for part in pages(rekindle, f"app {name}")}
    assert origins == {"base", None}
    paths = [Path(rekindle.json("inspect", image)["path"], "pages") for image in ("base", "app a", "app b")]
    inodes = [{file.stat().st_ino for file in path.iterdir()} for path in paths]
    # What is said of their size is what they take on disk, but for the file system's own blocks.
    on_disk = sum(file.stat().st_blocks * 512 for file in paths[1].iterdir())
    said = sum(part["stored"] for part in pages(rekindle, "app a"))
    assert 0.97 * on_disk < said <= on_disk, (said, on_disk)
    assert inodes[0] & inodes[1] == inodes[0] & inodes[2] == inodes[0]
    # Both the programs that went on and what is restored without the base.
    rekindle("rmi", "base")
    rekindle.restore("app a", "again")
    assert turns.take("again", 2) and turns.take("b", 2)
    # The programs have links of their own to what is removed now.
    rekindle("rmi", "app a", "app b")
    assert turns.take("a", 3) and turns.take("again", 3)


def test_a_damaged_base_is_named(rekindle, turns):
    turns.start()
    rekindle("checkpoint", "first", "--to", "the base", "--stop")
    rekindle.restore("the base", "a")
    # What it maps is looked through once, which would end it if it came to the damage.
    checked(rekindle, "a")
    rekindle("checkpoint", "a", "--to", "app", "--leave-running")
    base = next(Path(rekindle.json("inspect", "the base")["path"]).glob("pages/anon-*"))
    with base.open("r+b") as file:
        at = file.seek(0, os.SEEK_DATA)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    for command in (["restore", "app", "-d"], ["verify", "app"], ["checkpoint", "a", "--to", "next", "--stop"]):
        with pytest.raises(CommandError, match="the base"):
            rekindle(*command)
    # What could not be taken goes on.
    assert turns.take("a", 1)
    assert "next" not in [row["name"] for row in rekindle.json("images")["images"]]


def test_an_area_that_lies_in_pieces_is_moved_as_one(rekindle):
    """The kernel moves and grows one mapping at a time."""
    turns = rekindle.root / "turns"
    turns.mkdir()
    rekindle.run("first", sys.executable, "-c", MOVER, turns)
    rekindle.wait_lines("first", 1)
    rekindle("checkpoint", "first", "--to", "one", "--stop")
    rekindle.restore("one", "second")
    (turns / "1").touch()
    assert rekindle.wait_lines("second", 1) == ["2"]
    rekindle("checkpoint", "second", "--to", "two", "--stop")
    rekindle.restore("two", "third")
    (turns / "2").touch()
    pieces, end = rekindle.wait_end("third")
    assert end == "ok" and int(pieces.split()[1]) > 40


@pytest.mark.parametrize("fault", ["before-commit:kill", "before-commit:fail", "in-image:kill"])
def test_an_image_that_is_cut_short_takes_nothing_from_its_base(rekindle, turns, fault):
    turns.start()
    rekindle("checkpoint", "first", "--to", "base", "--stop")
    rekindle.restore("base", "a")
    rekindle("shutdown")
    rekindle.environment["REKINDLE_FAULT"] = fault
    rekindle("checkpoint", "a", "--to", "app", "--leave-running", check=False)
    rekindle("shutdown", check=False)
    del rekindle.environment["REKINDLE_FAULT"]
    made = fault.startswith("in-image")
    assert ("app" in [row["name"] for row in rekindle.json("images")["images"]]) == made
    assert not list((rekindle.state / "store/staging").iterdir())
    for image in ["base", *(["app"] if made else [])]:
        assert rekindle.json("verify", image)["sound"]
    assert turns.take("a", 1)
    rekindle("checkpoint", "a", "--to", "next", "--stop")
    rekindle("rmi", "base")
    rekindle.restore("next", "b")
    assert turns.take("b", 2)


def test_a_program_whose_page_files_are_not_known_shares_none(rekindle, turns):
    """As one that an earlier version has restored."""
    turns.start()
    rekindle("checkpoint", "first", "--to", "base", "--stop")
    rekindle.restore("base", "a")
    for list_ in rekindle.state.glob("pages/*/parts.json"):
        list_.unlink()
    rekindle("checkpoint", "a", "--to", "app", "--stop")
    assert {part["from"] for part in pages(rekindle, "app")} == {None}
    rekindle("rmi", "base")
    rekindle.restore("app", "b")
    assert turns.take("b", 1)
