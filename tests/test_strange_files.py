"""Whatever lies where a file of an image, of the store or of the daemon belongs: every command ends, and the name comes free."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from interleavings import machine
from rekindle import ROOT, CommandError, Rekindle
from test_bad_input import kill_daemon

# No file that is not what it should be makes the daemon take more.
MOST_MEMORY_KB = 400 << 10


def terabyte(path):
    path.touch()
    os.truncate(path, 1 << 40)


def listener(path):
    # A path that is too long for a socket is bound from its directory.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def directory(path):
    path.mkdir()
    (path / "in it").write_text("?")


OTHERS = {"zeros": lambda path: path.symlink_to("/dev/zero"), "directory": directory, "terabyte": terabyte, "socket": listener}


def put(path, kind):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "pipe" else OTHERS[kind](path)


def cases(places):
    """Each place with a pipe and with another thing; the store's own tests have all with all."""
    others = itertools.cycle(OTHERS)
    return [(place, kind) for place in places for kind in ("pipe", next(others))]


def tell(rekindle, *arguments):
    """The sentence with which a command fails; None if it does its job."""
    try:
        rekindle(*arguments)
    except CommandError as error:
        assert error.code in (1, 2) and error.message.count("\n") == 0 and "panicked" not in error.message, error.message
        return error.message


def peak(rekindle):
    status = Path(f"/proc/{machine.daemon(rekindle)}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])


def make_image(rekindle):
    """An image, with what restores have learned of it, and a copy of it."""
    rekindle.run("first", sys.executable, ROOT / "crates/cli/tests/programs/bump.py", 1_000_000)
    rekindle.wait_lines("first", 3)
    rekindle("checkpoint", "first", "--to", "image", "--stop")
    image = Path(rekindle.json("inspect", "image")["path"])
    for name, word in (("load-order.json", "parts"), ("first-pages.json", "runs"), ("unwritten.json", "parts")):
        (image / name).write_text(f'{{"{word}": [], "restores": 3}}')
    copy = rekindle.root / "copy"
    copied(image, copy)
    copied(chunks(image), rekindle.root / "chunks")
    return image


def chunks(image):
    return image.parent.parent / "chunks"


def of_gpu_memory(image):
    """The file of a chunk that a restore reads. The client's is read where no program has that build."""
    parts = json.loads((image / "manifest.json").read_text())["parts"]
    (chunk,) = next(part["chunks"] for part in parts if part["kind"] == "gpu-buffer")
    return next(chunks(image).glob(f"*/{chunk.split()[-1]}*"))


def copied(here, there):
    subprocess.run(["cp", "-a", "--sparse=always", here, there], check=True)


def test_in_the_place_of_an_images_files(rekindle):
    image = make_image(rekindle)
    within = [
        "manifest.json",
        "load-order.json",
        "first-pages.json",
        "unwritten.json",
        "cpu/inventory.img",
        "cpu/pages-1.img",
        "cpu/netns-1.img",
        "cpu",
    ]
    places = [image / name for name in within] + [next(image.glob("pages/anon-*")), of_gpu_memory(image), image]
    for place, kind in cases(places):
        put(place, kind)
        for command in ("images", "ps"):
            assert tell(rekindle, command) is None
        tell(rekindle, "inspect", "image")
        damage = tell(rekindle, "verify", "image")
        assert damage and (place.name in damage or "checksum" in damage), (place, kind, damage)
        if tell(rekindle, "restore", "image", "--name", "again", "-d") is None:
            assert place.suffix == ".json", (place, kind)
            rekindle("kill", "again")
            rekindle.wait_end("again")
        removed = tell(rekindle, "rmi", "image")
        assert removed is None, (place, kind, removed)
        assert rekindle.json("images")["images"] == []
        copied(rekindle.root / "copy", image)
        shutil.rmtree(chunks(image))
        copied(rekindle.root / "chunks", chunks(image))
    assert peak(rekindle) < MOST_MEMORY_KB
    rekindle("verify", "image")
    rekindle("restore", "image", "--name", "again", "-d")


def test_in_the_place_of_the_daemons_files(rekindle):
    """Of its store, its records and its journals, when it starts and while it runs."""
    image = make_image(rekindle)
    store, state = image.parent.parent, rekindle.state
    rekindle.restore("image", "again")
    of_it = rekindle.sandbox("again")["pid"]
    assert of_it
    (record,) = (path for path in (state / "sandboxes").glob("*.json") if '"again"' in path.read_text())
    (parts,) = (state / "pages").glob("*/parts.json")
    of_the_store = [store / "format", store / "collect.lock"]
    strays = [
        store / "staging/0123",
        store / "staging/0123.lock",
        store / "images/stray",
        state / "driver/stray.json",
        state / "sandboxes/stray.json",
    ]
    (state / "driver").mkdir(exist_ok=True)
    for place, kind in cases([*of_the_store, *strays, record.with_suffix(".traces"), parts]):
        kept = rekindle.root / "kept"
        if place.exists():
            shutil.copy2(place, kept)
        put(place, kind)
        for again in range(2):
            trace = ["trace", "again", "--svg", rekindle.root / "picture.svg"]
            for command in (["ps"], ["images"], ["verify", "image"], trace, ["restore", "image", "--name", "other", "-d"]):
                said = tell(rekindle, *command)
                if place == store / "format" and (again or command[0] == "verify"):
                    assert "format" in said, (command, kind, said)
                elif command[0] in ("ps", "images") or place not in of_the_store and command[0] == "verify":
                    assert said is None, (command, place, kind, said)
            if place != store / "format":
                assert tell(rekindle, "kill", "other") is None
            if not again:
                kill_daemon(rekindle)
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        if kept.exists():
            shutil.move(kept, place)
        assert rekindle.sandbox("again")["pid"] == of_it
    assert peak(rekindle) < MOST_MEMORY_KB
    rekindle("checkpoint", "again", "--to", "later", "--stop")
    rekindle("rmi", "image", "later")
    assert rekindle.json("images")["images"] == []


@pytest.mark.parametrize("kind", ["pipe", "zeros"])
def test_a_restore_that_was_held_up_by_advice_does_not_keep_the_name(kind):
    """Twice in a row, and the image can be removed at once."""
    with Rekindle() as rekindle:
        image = make_image(rekindle)
        put(image / "first-pages.json", kind)
        warnings = rekindle.restore("image", "again")["warnings"]
        assert any("first-pages.json" in warning for warning in warnings), warnings
        rekindle("kill", "again")
        rekindle.wait_end("again")
        put(image / "first-pages.json", kind)
        rekindle.restore("image", "again")
        rekindle("kill", "again")
        rekindle.wait_end("again")
        rekindle("rmi", "image")
