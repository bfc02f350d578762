"""What CRIU is spared while a program stands still, by a library of ours in it."""

import sys
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle

PROGRAM = Path(__file__).parent / "assist/program.py"


def start(rekindle, order):
    rekindle.run("program", sys.executable, PROGRAM, order)
    rekindle.wait_lines("program", 2)


def counts(report):
    return next(phase["counts"] for phase in report["phases"] if phase["name"] == "dump")


def take(rekindle, image):
    return rekindle.json("checkpoint", "program", "--to", image, "--leave-running")


def change(rekindle, order, expected):
    order.touch()
    rekindle.wait(lambda: rekindle.lines("program")[-1] == expected, "the attributes to be changed")


def goes_on(rekindle, expected, name="program"):
    lines = rekindle.wait_lines(name, len(rekindle.lines(name)) + 2)
    assert lines[-1] == expected, lines


def test_areas_are_known_before_a_program_stands_still(tmp_path):
    with Rekindle() as rekindle:
        start(rekindle, tmp_path / "order")
        # Each thread is asked some twenty things.
        assert counts(take(rekindle, "image"))["answers known"] > 15
        # Python may take memory in that very moment, and `maps` is another then.
        assert any(counts(take(rekindle, f"image-{number}"))["areas known"] == 1 for number in range(4))
        goes_on(rekindle, "in")


@pytest.mark.parametrize("assist", ["on", "off"])
def test_attributes_are_there_after_a_restore(tmp_path, assist):
    environment = {} if assist == "on" else {"REKINDLE_TUNING": "cpu.assist=off,cpu.precopy=check"}
    with Rekindle(**environment) as rekindle:
        start(rekindle, tmp_path / "order")
        change(rekindle, tmp_path / "order", "left out")
        report = take(rekindle, "image")
        if assist == "off":
            assert counts(report) == {"areas known": 0, "answers known": 0}
        rekindle("kill", "program")
        rekindle.restore("image", "again")
        goes_on(rekindle, "left out", "again")


def test_attributes_that_change_in_the_last_moment_are_seen(tmp_path):
    with Rekindle(REKINDLE_FAULT="detached:hang") as rekindle:
        start(rekindle, tmp_path / "order")
        refused = []
        # Where Python takes memory in that moment `maps` is another too, and CRIU looks itself.
        for number, expected in enumerate(["left out", "in"] * 2):
            rekindle.hold_again("detached")
            begun = rekindle.begin("checkpoint", "program", "--to", f"image-{number}", "--leave-running")
            rekindle.reached("detached")
            change(rekindle, tmp_path / "order", expected)
            rekindle.let_go("detached")
            try:
                begun.end()
            except CommandError as error:
                refused.append(str(error))
                assert f"image-{number}" not in [image["name"] for image in rekindle.json("images")["images"]]
            goes_on(rekindle, expected)
        assert refused and all("gave its memory other attributes" in why and "take the image again" in why for why in refused)
