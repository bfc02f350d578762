"""Memory that torch's allocator has free is not in images: a package of its name tells what that is."""

import sys
from pathlib import Path

import pytest
from frameworks import allocator
from rekindle import Rekindle

PROGRAM = Path(__file__).parent / "unused/blocks.py"
CHECKED = {"REKINDLE_TUNING": "gpu.shadow=check"}
MB = 1 << 20
OWN = " ".join(["own"] * 8)
# Whole chunks of what is free.
WITHOUT = "own own zeros zeros own zeros zeros own"
UNUSED = 8 * MB


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return allocator("torch", tmp_path_factory.mktemp("torch"))


class Blocks:
    def __init__(self, rekindle, library, kind="plain", beside=0):
        self.rekindle, self.commands = rekindle, rekindle.root / "commands"
        command = [sys.executable, PROGRAM, library, self.commands, kind, beside]
        rekindle("run", "-d", "--name", "blocks", "--gpu", rekindle.gpu, "--", *command)
        assert rekindle.wait_lines("blocks", 1) == ["ready"], rekindle.lines("blocks")

    def check(self, name="blocks"):
        """What its chunks hold."""
        before = len(self.rekindle.lines(name))
        with self.commands.open("a") as commands:
            commands.write("check\n")
        return self.rekindle.wait_lines(name, before + 1)[-1].removeprefix("check ")

    def imaged(self, image="image"):
        report = self.rekindle.json("checkpoint", "blocks", "--to", image, "--leave-running")
        (memory,) = report["memory"]
        return memory

    def restored(self):
        """What the image has."""
        self.rekindle("kill", "blocks")
        self.rekindle.restore("image", "again")
        return self.check("again")


def test_what_the_allocator_has_free_is_not_in_an_image(library):
    with Rekindle(**CHECKED) as rekindle:
        blocks = Blocks(rekindle, library)
        for image in ("first", "image"):
            memory = blocks.imaged(image)
            assert memory["unused_bytes"] == UNUSED and memory["way"] == "shadow", memory
            assert blocks.check() == OWN, "nothing is done to the program's memory"
        shown = rekindle("checkpoint", "blocks", "--to", "third", "--leave-running", "-v")
        assert "and 8.0 MiB that its allocator has free" in shown, shown
        assert blocks.restored() == WITHOUT


def test_an_image_that_is_written_in_the_stop_does_not_have_it(library):
    with Rekindle(REKINDLE_TUNING="gpu.shadow=off") as rekindle:
        blocks = Blocks(rekindle, library)
        rekindle("checkpoint", "blocks", "--to", "image", "--leave-running")
        assert blocks.restored() == WITHOUT


def test_nor_has_one_whose_program_ends_nor_the_image_of_a_restored_program(library):
    with Rekindle(**CHECKED) as rekindle:
        blocks = Blocks(rekindle, library)
        rekindle("checkpoint", "blocks", "--to", "image", "--stop")
        rekindle.restore("image", "again")
        assert blocks.check("again") == WITHOUT
        # It is asked as any other.
        (memory,) = rekindle.json("checkpoint", "again", "--to", "second", "--leave-running")["memory"]
        assert memory["unused_bytes"] == UNUSED, memory
        rekindle("kill", "again")
        rekindle.restore("second", "third")
        assert blocks.check("third") == WITHOUT


@pytest.mark.parametrize(("beside", "way"), [(16 * MB, "shadow"), (28 * MB, "ahead")])
def test_where_there_is_little_room_what_is_free_takes_none(library, beside, way):
    """Of 64 MB four are left to others: there is room for a copy of what is used, in the first case."""
    with Rekindle(**CHECKED, REKINDLE_GPU_HASH="on", REKINDLE_EMULATED="memory=64M") as rekindle:
        blocks = Blocks(rekindle, library, beside=beside)
        memory = blocks.imaged()
        assert memory["unused_bytes"] == UNUSED and memory["way"] == way, memory
        # What is expected to be free is known before.
        assert (memory["ahead_bytes"] == 0) == (way == "shadow"), memory
        assert blocks.check() == OWN
        assert blocks.restored() == WITHOUT


def test_of_a_restored_program_it_is_known_before_its_stop_too(library):
    with Rekindle(**CHECKED, REKINDLE_GPU_HASH="on", REKINDLE_EMULATED="memory=64M") as rekindle:
        blocks = Blocks(rekindle, library, beside=16 * MB)
        rekindle("checkpoint", "blocks", "--to", "image", "--stop")
        rekindle.restore("image", "again")
        (memory,) = rekindle.json("checkpoint", "again", "--to", "second", "--leave-running")["memory"]
        assert memory["unused_bytes"] == UNUSED and memory["way"] == "shadow" and memory["ahead_bytes"] == 0, memory
        assert blocks.check("again") == WITHOUT


def test_sleep_and_wake_lose_that_and_nothing_else(library):
    with Rekindle() as rekindle:
        blocks = Blocks(rekindle, library)
        rekindle("sleep", "blocks")
        assert blocks.check() == WITHOUT


@pytest.mark.parametrize(("kind", "left"), [("mapped", WITHOUT), ("twice", OWN), ("pool", OWN)])
def test_only_what_nobody_can_use_is_left_out(library, kind, left):
    with Rekindle(**CHECKED) as rekindle:
        blocks = Blocks(rekindle, library, kind)
        assert blocks.imaged()["unused_bytes"] == (UNUSED if left == WITHOUT else 0)
        assert blocks.check() == OWN
        assert blocks.restored() == left


@pytest.mark.parametrize("kind", ["recorded", "fails", "late", "keeps"])
def test_an_image_is_whole_where_nobody_tells_for_certain(library, kind):
    with Rekindle(**CHECKED) as rekindle:
        blocks = Blocks(rekindle, library, kind)
        assert blocks.imaged()["unused_bytes"] == 0
        assert blocks.check() == OWN
        assert blocks.restored() == OWN


def test_a_thread_that_makes_requests_all_the_time_has_images_as_they_should_be(library):
    """Whether it is quiet for long enough, nobody knows."""
    with Rekindle(**CHECKED) as rekindle:
        blocks = Blocks(rekindle, library, "asks")
        unused = blocks.imaged()["unused_bytes"]
        assert blocks.check() == OWN
        assert (unused, blocks.restored()) in ((0, OWN), (UNUSED, WITHOUT))


def test_programs_may_have_their_images_whole(library):
    with Rekindle(REKINDLE_TUNING="gpu.unused=keep") as rekindle:
        blocks = Blocks(rekindle, library)
        assert blocks.imaged()["unused_bytes"] == 0
        assert blocks.restored() == OWN


def is_known(library):
    """Whether CRIU had to read no areas that it had been told of, for a program's first image."""
    with Rekindle() as rekindle:
        blocks = Blocks(rekindle, library, "much")
        report = rekindle.json("checkpoint", "blocks", "--to", "image", "--leave-running")
        assert blocks.check() == OWN
        (dump,) = (phase for phase in report["phases"] if phase["name"] == "dump")
        return dump["counts"]["areas known"] == 1


def test_the_question_leaves_the_program_s_memory_as_it_was_when_criu_was_told_of_it(library):
    # Where other work takes the processors, the first question is often answered too late to be a rehearsal.
    assert any(is_known(library) for _ in range(20))
