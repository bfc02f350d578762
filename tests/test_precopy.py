"""Memory that is copied while programs run: images have what was there when they stood still, whatever was written meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from generations import chain
from generations.chain import Orders
from interleavings import holders, machine
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon
from test_cut import Steps, told

PROGRAM = Path(__file__).parent / "precopy/writer.py"
# What was copied is compared with what is there when the program stands still.
CHECKED = {"REKINDLE_TUNING": "cpu.precopy=check"}
# The program of `test_cut.py` has so much that it does not write between two steps.
BYTES = 24 << 20
POINTS = ["ahead-begun", "ahead-copied"]


def has_protection():
    with Rekindle() as rekindle:
        findings = rekindle.json("doctor", check=False)["findings"]
        return next(finding["ok"] for finding in findings if finding["need"] == "asynchronous write protection")


pytestmark = pytest.mark.skipif(not has_protection(), reason="this kernel does not say what is written")


def start(rekindle, *arguments):
    rekindle.run("writer", sys.executable, PROGRAM, *arguments)
    assert "ready" in rekindle.wait_lines("writer", 2)[:2], rekindle.lines("writer")


def goes_on(rekindle, name="writer"):
    """It is right for a while more."""
    lines = rekindle.wait_lines(name, len(rekindle.lines(name)) + 3)
    assert rekindle.sandbox(name)["pid"] and "wrong" not in "".join(lines), lines


def take(rekindle, image="image"):
    return rekindle.json("checkpoint", "writer", "--to", image, "--leave-running")


def phases(report):
    return {phase["name"]: phase for phase in report["phases"]}


def before(report):
    """What is known of memory before the program stands still: its last image may have some."""
    return sum(report[name]["bytes"] for name in ("copy ahead", "in the last image") if name in report)


def images(rekindle):
    return [image["name"] for image in rekindle.json("images")["images"]]


def left_over(rekindle):
    dumps = rekindle.state / "dumps"
    return os.listdir(rekindle.state / "store/staging") + (os.listdir(dumps) if dumps.exists() else [])


def test_each_image_of_a_program_that_writes_all_the_time_is_of_one_moment():
    with Rekindle(**CHECKED) as rekindle:
        start(rekindle)
        for number in range(2):
            made = take(rekindle, f"image-{number}")
            report = phases(made)
            assert before(report) > 12 << 20, report
            if number:
                copied = sum(report[name]["bytes"] for name in ("copy ahead", "copy again"))
                assert made["written"]["cpu_bytes"] == copied > 0, made
            goes_on(rekindle)
        rekindle("kill", "writer")
        for number in range(2):
            rekindle("verify", f"image-{number}")
            rekindle.restore(f"image-{number}", f"restored-{number}")
            goes_on(rekindle, f"restored-{number}")
            # Its own image, too.
            rekindle("checkpoint", f"restored-{number}", "--to", f"again-{number}", "--leave-running")
            rekindle("kill", f"restored-{number}")
        rekindle.restore("again-1", "again")
        goes_on(rekindle, "again")


def test_what_is_not_written_is_not_copied_while_the_program_stands_still():
    with Rekindle(**CHECKED) as rekindle:
        steps = Steps(rekindle)
        steps.take(2)
        for number in range(2):
            report = phases(rekindle.json("checkpoint", "steps", "--to", f"image-{number}", "--leave-running"))
            assert before(report) > BYTES > report["dump"]["bytes"], report
            steps.take(1)
        rekindle("kill", "steps")
        steps.set(5)
        rekindle.restore("image-1", "restored")
        assert rekindle.wait_lines("restored", 2) == told(4, 5)


@pytest.mark.parametrize(("point", "seed"), list(zip(POINTS, [1, 3], strict=True)))
def test_memory_that_is_mapped_moved_and_given_back_meanwhile_is_what_it_is(tmp_path, point, seed):
    """The program knows every byte, protection and border of its memory."""
    program = chain.build(tmp_path)
    with Rekindle(**CHECKED, REKINDLE_FAULT=f"{point}:hang") as rekindle:
        orders = Orders(tmp_path)

        def change(number):
            orders.send(f"go {seed * 1000 + number} 60")
            text = orders.answer()
            assert text.startswith("ok"), text

        rekindle.run("wander", program, tmp_path, seed, 4096)
        change(0)
        for number in range(1, 5):
            begun = rekindle.begin("checkpoint", "wander", "--to", f"image-{number}", "--leave-running", "--json")
            rekindle.reached(point)
            change(number)
            rekindle.let_go(point)
            assert before(phases(json.loads(begun.end())))
            rekindle.hold_again(point)
        change(5)
        rekindle("kill", "--signal", "9", "wander")
        rekindle.wait_end("wander")
        for number in range(1, 5):
            rekindle.restore(f"image-{number}", f"restored-{number}")
            change(10 + number)
            rekindle("kill", "--signal", "9", f"restored-{number}")
            rekindle.wait_end(f"restored-{number}")


def test_an_image_whose_memory_is_read_whole_has_it_too():
    with Rekindle(REKINDLE_TUNING="cpu.precopy=check,restore.map-pages=off") as rekindle:
        start(rekindle)
        assert phases(take(rekindle))["copy ahead"]["bytes"]
        rekindle("kill", "writer")
        rekindle("verify", "image")
        rekindle.restore("image", "restored")
        goes_on(rekindle, "restored")


def test_where_it_is_not_wanted_all_is_copied_while_the_program_stands_still():
    with Rekindle(REKINDLE_TUNING="cpu.precopy=off") as rekindle:
        start(rekindle)
        report = phases(take(rekindle))
        assert "copy ahead" not in report and report["dump"]["bytes"] > 16 << 20, report
        goes_on(rekindle)


@pytest.fixture
def file(tmp_path):
    """The path of a file that is not there yet, and can be opened for direct input and output."""
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct input and output")
    path.unlink()
    return path


def test_a_program_with_direct_input_and_output_is_not_copied_ahead(file):
    file.write_bytes(bytes(4096))
    with Rekindle(**CHECKED) as rekindle:
        start(rekindle, file)
        report = phases(take(rekindle))
        assert "copy ahead" not in report and report["dump"]["bytes"] > 16 << 20, report
        goes_on(rekindle)


def test_of_a_program_that_begins_with_it_meanwhile_all_is_copied_while_it_stands_still(file):
    with Rekindle(**CHECKED, REKINDLE_FAULT="ahead-begun:hang") as rekindle:
        start(rekindle, file)
        begun = rekindle.begin("checkpoint", "writer", "--to", "image", "--leave-running", "--json")
        rekindle.reached("ahead-begun")
        file.write_bytes(bytes(4096))
        rekindle.wait(lambda: "direct" in rekindle.lines("writer"), "the file to be opened")
        rekindle.let_go("ahead-begun")
        assert phases(json.loads(begun.end()))["copy ahead"]["bytes"] == 0
        goes_on(rekindle)
        rekindle("kill", "writer")
        rekindle("verify", "image")
        rekindle.restore("image", "restored")
        goes_on(rekindle, "restored")


@pytest.mark.parametrize("point", POINTS)
def test_a_daemon_that_is_killed_meanwhile_leaves_the_program_and_no_image(point):
    with Rekindle(**CHECKED, REKINDLE_FAULT=f"{point}:hang") as rekindle:
        start(rekindle)
        begun = rekindle.begin("checkpoint", "writer", "--to", "image", "--leave-running")
        rekindle.reached(point)
        kill_daemon(rekindle)
        with pytest.raises(CommandError):
            begun.end()
        rekindle.let_go(point)
        goes_on(rekindle)
        assert not images(rekindle)
        take(rekindle)
        goes_on(rekindle)
        assert images(rekindle) == ["image"] and not left_over(rekindle)


@pytest.mark.parametrize("point", POINTS)
def test_a_program_that_is_killed_meanwhile_leaves_no_image(point):
    with Rekindle(**CHECKED, REKINDLE_FAULT=f"{point}:hang") as rekindle:
        start(rekindle)
        begun = rekindle.begin("checkpoint", "writer", "--to", "image", "--leave-running")
        rekindle.reached(point)
        os.kill(rekindle.sandbox("writer")["pid"], signal.SIGKILL)
        rekindle.let_go(point)
        with pytest.raises(CommandError):
            begun.end()
        assert not images(rekindle) and not left_over(rekindle)


@pytest.mark.parametrize("point", POINTS)
def test_a_checkpoint_that_is_given_up_meanwhile_leaves_nothing(point):
    with Rekindle(**CHECKED, REKINDLE_FAULT=point) as rekindle:
        start(rekindle)
        with pytest.raises(CommandError, match=point):
            take(rekindle)
        goes_on(rekindle)
        assert not images(rekindle) and not left_over(rekindle)


def kill_criu(rekindle):
    (criu,) = (pid for pid, words in machine.processes_of(rekindle).items() if holders.is_meant("criu", words))
    os.kill(criu, signal.SIGKILL)
    rekindle.wait(lambda: not machine.is_alive(criu), "the end of CRIU")


def test_a_criu_that_is_killed_before_its_turn_is_replaced():
    with Rekindle(**CHECKED, REKINDLE_FAULT="detached:hang") as rekindle:
        start(rekindle)
        begun = rekindle.begin("checkpoint", "writer", "--to", "image", "--leave-running")
        rekindle.reached("detached")
        kill_criu(rekindle)
        rekindle.let_go("detached")
        begun.end()
        goes_on(rekindle)
        rekindle("kill", "writer")
        rekindle.restore("image", "restored")
        goes_on(rekindle, "restored")


@pytest.mark.parametrize("point", ["pages-begun", "frozen"])
def test_a_criu_that_is_killed_after_it_leaves_the_program_and_no_image(point):
    with Rekindle(**CHECKED, REKINDLE_FAULT=f"{point}:hang") as rekindle:
        start(rekindle)
        program = rekindle.sandbox("writer")["pid"]
        begun = rekindle.begin("checkpoint", "writer", "--to", "image", "--leave-running")
        rekindle.reached(point)
        # The pages are waited for beside it: it may not have begun, and would be replaced.
        rekindle.wait(lambda: machine.status(program, "TracerPid") not in ("", "0"), "CRIU")
        kill_criu(rekindle)
        rekindle.let_go(point)
        with pytest.raises(CommandError) as error:
            begun.end()
        message = error.value.message
        assert "was killed by signal 9" in message and "the program goes on" in message and "\n" not in message, message
        goes_on(rekindle)
        assert not images(rekindle) and not left_over(rekindle)
        assert phases(take(rekindle))["copy ahead"]["bytes"] > 12 << 20
        goes_on(rekindle)
        rekindle("kill", "writer")
        rekindle.restore("image", "restored")
        goes_on(rekindle, "restored")


def test_where_there_is_no_room_for_it_the_checkpoint_ends_in_a_sentence_and_the_program_goes_on(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", tmp_path]).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        with Rekindle(**CHECKED, state=tmp_path) as rekindle:
            start(rekindle)
            with pytest.raises(CommandError, match="full|No space|room"):
                take(rekindle)
            goes_on(rekindle)
            assert not images(rekindle) and not left_over(rekindle)
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_criu_is_made_ready_beside_the_copying_where_there_is_a_last_image():
    """Without one, most of what the program has is copied, and mappings change by that."""
    held = 1
    with Rekindle(REKINDLE_FAULT="ahead-copied:hang") as rekindle:
        start(rekindle)
        for number in range(2):
            rekindle.hold_again("ahead-copied")
            begun = rekindle.begin("checkpoint", "writer", "--to", f"image-{number}", "--leave-running")
            rekindle.reached("ahead-copied")
            time.sleep(held)
            rekindle.let_go("ahead-copied")
            begun.end()
        traces = rekindle.json("trace", "writer", "--svg", rekindle.root / "picture.svg")["traces"]
        ready, copied = zip(*((phases(trace)["prepare"]["start_us"], phases(trace)["copy again"]["start_us"]) for trace in traces), strict=True)
        assert ready[0] > held * 1e6 and ready[1] + held * 0.5e6 < copied[1], (ready, copied)
        goes_on(rekindle)
