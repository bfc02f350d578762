"""An image that would not come back is none: it is seen while its program still stands, and the program goes on."""

import sys
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle

SPARSE = Path(__file__).parent / "generations/sparse.py"
WAITS = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); print('ready', flush=True); threading.Event().wait()"


def test_areas_that_become_one_again_come_back(rekindle):
    """Memory that is restored from several pieces and then written as a whole is one area in the next image."""
    steps = rekindle.root / "steps"
    steps.mkdir()
    rekindle.run("a", sys.executable, SPARSE, steps)
    for number in range(3):
        (steps / str(number)).touch()
        told = rekindle.wait_lines("a", 1 if number == 0 else 2)[-1]
        rekindle("checkpoint", "a", "--to", f"image-{number}", "--stop")
        rekindle("verify", f"image-{number}")
        rekindle.restore(f"image-{number}", "a")
        (steps / f"{number}-restored").touch()
        # Its log begins with the restore.
        assert rekindle.wait_lines("a", 1)[0] == told


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


# What is done to CRIU's images, and what is said of it.
DEFECTS = {
    "a thread's core is missing": (lambda images: sorted(images.glob("core-*.img"))[1].unlink(), "is missing"),
    "the areas end in the middle": (lambda images: cut(images / "mm-1000.img"), "1000"),
    "the files are no files of CRIU's": (lambda images: (images / "files.img").write_bytes(bytes(64)), "files.img"),
    "a process is not in the tree": (lambda images: (images / "core-1000.img").rename(images / "core-1777.img"), "core-1000.img is missing"),
    "descriptors are missing": (lambda images: next(images.glob("fdinfo-*.img")).unlink(), "fdinfo"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_an_image_that_would_not_come_back_is_not_made(defect):
    harm, words = DEFECTS[defect]
    after = "--leave-running" if defect == "descriptors are missing" else "--stop"
    with Rekindle(REKINDLE_FAULT="frozen:hang", REKINDLE_TUNING="restore.map-pages=off") as rekindle:
        rekindle.run("a", sys.executable, "-c", WAITS)
        rekindle.wait_lines("a", 1)
        pid = rekindle.sandbox("a")["pid"]
        checkpoint = rekindle.begin("checkpoint", "a", "--to", "x", after)
        rekindle.reached("frozen")
        (images,) = (rekindle.state / "dumps").iterdir()
        harm(images)
        rekindle.let_go("frozen")
        with pytest.raises(CommandError, match=f"would not have come back: .*{words}"):
            checkpoint.end()
        assert rekindle.json("images")["images"] == []
        assert rekindle.sandbox("a")["pid"] == pid
        rekindle("checkpoint", "a", "--to", "x", after)
        rekindle.restore("x", "b")
