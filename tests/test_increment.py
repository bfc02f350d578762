"""Images of a program that goes on follow each other: each copies and writes what was written since the one before."""

import os
import random
import sys
from pathlib import Path

import pytest
from generations import chain
from generations.chain import Chain, Orders
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon
from test_precopy import has_protection, images, phases

PROGRAM = Path(__file__).parent / "increment/turns.py"
# What is taken for unwritten is compared with what is there when the program stands still.
CHECKED = "cpu.precopy=check"
# What the program does not write to.
STILL = 30 << 20
LAST = "in the last image"

pytestmark = pytest.mark.skipif(not has_protection(), reason="this kernel does not say what is written")


class Turns:
    """The program, and one that nobody touches, whose answers it must have."""

    def __init__(self, rekindle):
        self.rekindle = rekindle
        self.directory = rekindle.root / "turns"
        self.directory.mkdir()
        for name in ("plain", "first"):
            rekindle.run(name, sys.executable, PROGRAM, self.directory)
            assert rekindle.wait_lines(name, 1) == ["ready"], rekindle.lines(name)

    def take(self, turn, *names):
        """The next turn of all that are at it; each has the answer of the untouched one."""
        (self.directory / str(turn)).touch()
        expected = self.answer("plain", turn)
        for name in names:
            assert self.answer(name, turn) == expected, name

    def answer(self, name, turn):
        rows = lambda: [line for line in self.rekindle.lines(name) if line.startswith(f"{turn} ")]
        self.rekindle.wait(lambda: rows() or not self.rekindle.sandbox(name)["pid"], f"turn {turn} of {name}")
        return rows()[-1] if rows() else self.rekindle.lines(name)


def image(rekindle, to, name="first"):
    return phases(rekindle.json("checkpoint", name, "--to", to, "--leave-running"))


def links(rekindle):
    return os.listdir(rekindle.state / "last-images")


def test_each_image_has_what_was_written_since_the_one_before_and_stands_for_itself():
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        turns = Turns(rekindle)
        first = image(rekindle, "0")
        assert LAST not in first
        copied, own = first["copy ahead"]["bytes"], rekindle.own_cpu_bytes("0")
        for turn in range(1, 9):
            turns.take(turn, "first")
            report = image(rekindle, str(turn))
            assert report[LAST]["bytes"] > STILL > report["copy ahead"]["bytes"], report
            assert report["copy ahead"]["bytes"] < copied / 2 and rekindle.own_cpu_bytes(str(turn)) < own / 2, report
        # Those that the others were made from go.
        rekindle("rmi", "0", "2", "4", "7")
        turns.take(9, "first")
        for name in ("1", "3", "8"):
            assert rekindle.json("verify", name)["sound"]
            rekindle.restore(name, f"restored-{name}")
            for turn in range(int(name) + 1, 10):
                assert turns.answer(f"restored-{name}", turn) == turns.answer("plain", turn)
        # Also while the program goes on that they were taken of, and after it.
        image(rekindle, "9")
        rekindle("kill", "first", "restored-1", "restored-8")
        rekindle.wait(lambda: not links(rekindle), "the links to go")
        rekindle("rmi", "1", "3", "8")
        rekindle.restore("9", "last")
        turns.take(10, "last", "restored-3")


def test_a_restored_program_is_imaged_again_and_again():
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        turns = Turns(rekindle)
        image(rekindle, "0")
        turns.take(1, "first")
        image(rekindle, "1")
        rekindle("kill", "first")
        rekindle.restore("1", "second")
        for turn in range(2, 6):
            turns.take(turn, "second")
            image(rekindle, str(turn), "second")
            rekindle("rmi", str(turn - 1))
        rekindle("kill", "second")
        rekindle.restore("5", "third")
        turns.take(6, "third")
        rekindle("checkpoint", "third", "--to", "6", "--stop")
        rekindle.restore("6", "fourth")
        turns.take(7, "fourth")


# Knows what each byte of its memory is: writes all of it but a part at the beginning, then single bytes here and there.
REWRITES = """
import os, sys, time
import numpy as np
from pathlib import Path
place = Path(sys.argv[1])
had = lambda: np.random.default_rng(1).integers(0, 256, 48 << 20, np.uint8)
held, whole, single = had(), 0, 0

def is_right():
    expected = had()
    expected[4 << 20:] += np.uint8(whole & 255)
    expected[np.arange(single) * 9973 * 4096 % len(expected)] = 7
    return np.array_equal(held, expected)

print("ready", flush=True)
while True:
    if (place / f"whole-{whole}").exists():
        held[4 << 20:] += 1
        whole += 1
        held[np.arange(single) * 9973 * 4096 % len(held)] = 7
        print("whole", whole, is_right(), flush=True)
    if (place / f"single-{single}").exists():
        held[single * 9973 * 4096 % len(held)] = 7
        single += 1
        print("single", single, is_right(), flush=True)
    time.sleep(0.01)
"""


def test_what_a_restored_program_has_written_is_copied_once_and_before_it_stands_still():
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        place, much = rekindle.root / "place", 40 << 20
        place.mkdir()
        rekindle.run("program-0", sys.executable, "-c", REWRITES, place)
        rekindle.wait_lines("program-0", 1)
        image(rekindle, "0", "program-0")
        for generation in range(1, 4):
            before, name = f"program-{generation - 1}", f"program-{generation}"
            rekindle("kill", before)
            rekindle.restore(str(generation - 1), name)
            (place / f"whole-{generation - 1}").touch()
            rekindle.wait(lambda: f"whole {generation} True" in rekindle.lines(name), "all to be written")
            report = image(rekindle, "once", name)
            assert report["copy ahead"]["bytes"] > much and report["dump"]["bytes"] < much / 10, report
            (place / f"single-{generation - 1}").touch()
            rekindle.wait(lambda: f"single {generation} True" in rekindle.lines(name), "a byte to be written")
            report = image(rekindle, str(generation), name)
            assert report[LAST]["bytes"] > much and report["copy ahead"]["bytes"] < much / 4, report
            # What it still maps of the file that it was restored from, which most of it has left behind, is written again.
            assert rekindle.own_cpu_bytes(str(generation)) < much / 2
            rekindle("rmi", "once")


def test_a_program_that_has_become_another_is_taken_whole():
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        turns = Turns(rekindle)
        image(rekindle, "0")
        (turns.directory / "exec").touch()
        for name in ("first", "plain"):
            rekindle.wait_lines(name, 2)
        report = image(rekindle, "1")
        assert report[LAST]["bytes"] == 0 and report["copy ahead"]["bytes"] > STILL, report
        turns.take(1, "first")
        assert image(rekindle, "2")[LAST]["bytes"] > STILL
        rekindle("kill", "first")
        rekindle("rmi", "0", "1")
        rekindle.restore("2", "restored")
        turns.take(2, "restored")


def test_what_another_process_writes_to_its_memory_is_in_the_next_image():
    """As a debugger does."""
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        script = "import ctypes, os, sys, time\nheld = ctypes.create_string_buffer(b'a' * (8 << 20))\nprint(hex(ctypes.addressof(held)), flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint(held[5 << 20], flush=True)"
        go = rekindle.root / "go"
        rekindle.run("first", sys.executable, "-c", script, go)
        at = int(rekindle.wait_lines("first", 1)[0], 16)
        image(rekindle, "0")
        with open(f"/proc/{rekindle.sandbox('first')['pid']}/mem", "r+b", buffering=0) as memory:
            memory.seek(at + (5 << 20))
            memory.write(b"z")
        assert image(rekindle, "1")[LAST]["bytes"] > 4 << 20
        rekindle("kill", "first")
        go.touch()
        for name, expected in (("0", "b'a'"), ("1", "b'z'")):
            rekindle.restore(name, f"restored-{name}")
            assert rekindle.wait_end(f"restored-{name}")[-1] == expected


@pytest.mark.parametrize("seed", [1, 2])
def test_memory_that_is_mapped_moved_and_given_back_between_images_is_what_it_is(tmp_path, seed):
    """The program knows every byte, protection and border of its memory."""
    program, draw = chain.build(tmp_path), random.Random(seed)
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        orders = Orders(tmp_path)

        def change(number):
            orders.send(f"go {seed * 1000 + number} {draw.choice([5, 20, 60])}")
            text = orders.answer()
            assert text.startswith("ok"), text

        rekindle.run("wander", program, tmp_path, seed, 4096)
        left = []
        for number in range(10):
            change(number)
            rekindle("checkpoint", "wander", "--to", str(number), "--leave-running")
            left.append(str(number))
            if draw.random() < 0.4:
                gone = left.pop(draw.randrange(len(left)))
                rekindle("rmi", gone)
        change(20)
        rekindle("kill", "--signal", "9", "wander")
        rekindle.wait_end("wander")
        for name in left:
            rekindle("verify", name)
            rekindle.restore(name, f"restored-{name}")
            change(30 + int(name))
            rekindle("kill", "--signal", "9", f"restored-{name}")
            rekindle.wait_end(f"restored-{name}")


@pytest.mark.parametrize("seed", [4, 9])
def test_generations_of_images_that_follow_each_other(tmp_path, seed):
    program = chain.build(tmp_path)
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        generations = Chain(rekindle, program, seed, follows=0.7)
        generations.begin()
        for _ in range(8):
            generations.step()
        generations.end()


def test_it_is_let_go_of_after_a_while():
    with Rekindle(REKINDLE_TUNING=f"{CHECKED},cpu.increment=1") as rekindle:
        turns = Turns(rekindle)
        image(rekindle, "0")
        rekindle.wait(lambda: not links(rekindle), "the links to go")
        turns.take(1, "first")
        assert LAST not in image(rekindle, "1")
        rekindle("kill", "first")
        rekindle.restore("1", "restored")
        turns.take(2, "restored")


def test_where_it_is_not_wanted_each_image_takes_all():
    with Rekindle(REKINDLE_TUNING=f"{CHECKED},cpu.increment=0") as rekindle:
        turns = Turns(rekindle)
        for turn in range(1, 3):
            turns.take(turn, "first")
            report = image(rekindle, str(turn))
            assert LAST not in report and report["copy ahead"]["bytes"] > STILL, report
        assert not links(rekindle)


@pytest.mark.parametrize("point", ["ahead-begun", "ahead-copied", "frozen", "before-commit"])
def test_an_image_that_fails_has_the_next_one_take_all(point):
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        turns = Turns(rekindle)
        image(rekindle, "0")
        turns.take(1, "first")
        rekindle("shutdown")
        rekindle.environment["REKINDLE_FAULT"] = f"{point}:hang"
        rekindle.let_go(point)
        image(rekindle, "1")
        rekindle.hold_again(point)
        begun = rekindle.begin("checkpoint", "first", "--to", "2", "--leave-running")
        rekindle.reached(point)
        begun.process.kill()
        begun.process.wait(timeout=60)
        rekindle.let_go(point)
        turns.take(2, "first")
        rekindle.wait(lambda: rekindle.sandbox("first")["state"] == "running", "the attempt to end")
        image(rekindle, "3")
        turns.take(3, "first")
        assert image(rekindle, "4")[LAST]["bytes"] > STILL
        rekindle("kill", "first")
        rekindle.restore("4", "restored")
        turns.take(4, "restored")


def test_a_daemon_that_is_killed_keeps_nothing():
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        turns = Turns(rekindle)
        image(rekindle, "0")
        assert links(rekindle)
        kill_daemon(rekindle)
        turns.take(1, "first")
        assert not links(rekindle)
        assert LAST not in image(rekindle, "1")
        turns.take(2, "first")
        assert image(rekindle, "2")[LAST]["bytes"] > STILL
        assert images(rekindle) == ["0", "1", "2"]
        rekindle("kill", "first")
        rekindle.restore("2", "restored")
        turns.take(3, "restored")


def test_a_damaged_file_of_the_last_image_is_named():
    with Rekindle(REKINDLE_TUNING=CHECKED) as rekindle:
        turns = Turns(rekindle)
        image(rekindle, "the base")
        turns.take(1, "first")
        image(rekindle, "next")
        base = max(Path(rekindle.json("inspect", "the base")["path"]).glob("pages/anon-*"), key=lambda path: path.stat().st_blocks)
        with base.open("r+b") as file:
            at = file.seek(0, os.SEEK_DATA)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(CommandError, match="the base"):
            rekindle("verify", "next")
        with pytest.raises(CommandError):
            image(rekindle, "third")
        # What could not be taken goes on, and is taken whole.
        turns.take(2, "first")
        image(rekindle, "fourth")
        rekindle("kill", "first")
        rekindle.restore("fourth", "restored")
        turns.take(3, "restored")
