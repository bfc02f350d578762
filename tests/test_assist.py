"""What CRIU is spared while a program stands still, by a library of ours in it."""

import subprocess
import sys
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle

PROGRAM, SHAPE = (Path(__file__).parent / "assist" / name for name in ("program.py", "shape.c"))
# `cpu.assist=off`, with all memory compared besides.
OFF = {"REKINDLE_TUNING": "cpu.assist=off,cpu.precopy=check"}
NOTHING_KNOWN = {"areas known": 0, "answers known": 0, "links known": 0}


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
    with Rekindle(**({} if assist == "on" else OFF)) as rekindle:
        start(rekindle, tmp_path / "order")
        change(rekindle, tmp_path / "order", "left out")
        report = take(rekindle, "image")
        if assist == "off":
            assert counts(report) == NOTHING_KNOWN
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


@pytest.mark.parametrize("assist", ["on", "off"])
def test_rights_of_mapped_files_and_states_of_threads_are_kept(tmp_path, assist):
    program = tmp_path / "shape"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", SHAPE, "-o", program, "-lpthread"], check=True)
    with Rekindle(**({"REKINDLE_TUNING": "cpu.precopy=check"} if assist == "on" else OFF)) as rekindle:
        rekindle.run("program", program, tmp_path)
        goes_on(rekindle, "right")
        for number in range(3):
            known = counts(take(rekindle, f"image-{number}"))
            if assist == "off":
                assert known == NOTHING_KNOWN
            else:
                # Of 21 threads each is asked some thirty things, and has an area for its stack and one beside it.
                assert known["areas known"] == 1 and known["answers known"] > 21 * 25 and known["links known"] > 40, known
            goes_on(rekindle, "right")
        rekindle("kill", "program")
        rekindle.restore("image-2", "again")
        goes_on(rekindle, "right", "again")
        # What was restored is imaged in turn.
        rekindle("checkpoint", "again", "--to", "second", "--leave-running")
        rekindle("kill", "again")
        rekindle.restore("second", "third")
        goes_on(rekindle, "right", "third")


def test_a_file_that_has_another_build_id_is_not_taken_for_the_one_that_was_mapped(tmp_path):
    """CRIU itself compares sizes alone."""
    library, program = tmp_path / "libother.so", tmp_path / "shows.py"
    build = lambda build_id: subprocess.run(  # noqa: E731
        ["cc", "-shared", f"-Wl,--build-id=0x{build_id}", "-xc", "-", "-o", library], input="int other = 7;", text=True, check=True
    )
    build("11" * 20)
    program.write_text(f"import ctypes, time\nctypes.CDLL({str(library)!r})\nwhile True: print('in', flush=True), time.sleep(0.05)\n")
    with Rekindle() as rekindle:
        rekindle.run("program", sys.executable, program)
        goes_on(rekindle, "in")
        take(rekindle, "image")
        rekindle("kill", "program")
        library.unlink()
        build("22" * 20)
        with pytest.raises(CommandError, match="has changed: found build id 22"):
            rekindle.restore("image", "again")
        library.unlink()
        build("11" * 20)
        rekindle.restore("image", "again")
        goes_on(rekindle, "in", "again")
