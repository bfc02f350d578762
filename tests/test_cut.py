"""Images of programs that go on while their GPU memory is written: what is in them is what was there when the program stood still."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from rekindle import PATIENCE, CommandError, Rekindle
from test_bad_input import kill_daemon

PROGRAM = Path(__file__).parent / "cut/steps.py"
# Images are compared with what memory held when the program stood still.
CHECKED = {"REKINDLE_TUNING": "gpu.shadow=check"}
HELD = {**CHECKED, "REKINDLE_FAULT": "drain-begun:hang"}


class Steps:
    """The program, which takes as many steps as it is told."""

    def __init__(self, rekindle, fill=0, options=()):
        self.rekindle, self.limit, self.count = rekindle, rekindle.root / "limit", 0
        self.set(0)
        rekindle("run", "-d", "--name", "steps", "--gpu", rekindle.gpu, *options, "--", sys.executable, PROGRAM, self.limit, fill)
        assert rekindle.wait_lines("steps", 1) == ["ready"], rekindle.lines("steps")

    def set(self, limit):
        new = self.limit.with_suffix(".new")
        new.symlink_to(str(limit))
        new.rename(self.limit)

    def take(self, more):
        """Each finds what the one before has left."""
        self.count += more
        self.set(self.count)
        lines = self.rekindle.wait_lines("steps", self.count + 1)
        assert lines == ["ready", *told(1, self.count)]


def told(first, last):
    return [f"step {n} found {n - 1}" for n in range(first, last + 1)]


def taken(rekindle, image="image"):
    """A checkpoint whose GPU memory is not written before the test says so."""
    begun = rekindle.begin("checkpoint", "steps", "--to", image, "--leave-running", "--json")
    rekindle.reached("drain-begun")
    return begun


WAITS, BUSY = (Path(__file__).parent / "cut" / name for name in ("waits.py", "busy.py"))
# Of a kernel that ends before a moment is waited for no longer, beside others too; and of one that has others under way behind it.
ROUNDS, LONG = 1_600, 6_400


def waited(rekindle, name):
    """How many kernels the program has waited for; each has found what it was to find."""
    lines = rekindle.lines(name)
    for line in lines:
        number, found = map(int, line.split())
        assert found == (pow(3, ROUNDS * (number + 1), 1 << 33) - 1) // 2 % (1 << 32), line
    return [int(line.split()[0]) for line in lines]


@pytest.mark.parametrize("moment", ["on", "off"])
@pytest.mark.parametrize("ways", [["stream", "event", "context"], ["copy"]], ids=" ".join)
def test_a_program_that_waits_for_the_gpu_is_taken_when_that_rests_or_while_it_works(ways, moment):
    with Rekindle(REKINDLE_TUNING=f"gpu.moment={moment}") as rekindle:
        rekindle.run("waits", sys.executable, WAITS, ROUNDS, *ways)
        phases, waits, known = [], [], 0
        for number in range(4):
            rekindle.wait(lambda: len(waited(rekindle, "waits")) > known, "another kernel")
            report = rekindle.json("checkpoint", "waits", "--to", f"image-{number}", "--leave-running")
            phases += [phase["name"] for phase in report["phases"]]
            waits += [phase["duration_us"] for phase in report["phases"] if phase["name"] == "wait for a moment"]
            known = len(waited(rekindle, "waits"))
        if moment == "off":
            assert "the program's work" in phases and "wait for a moment" not in phases, phases
        else:
            assert len(waits) == 4 and min(waits) < 450_000, "no moment came before the limit"
        rekindle.wait(lambda: len(waited(rekindle, "waits")) > known + 2, "more kernels")
        rekindle("kill", "waits")
        for number in range(4):
            rekindle.restore(f"image-{number}", "restored")
            rekindle.wait(lambda: len(waited(rekindle, "restored")) > 1, "kernels after the restore")
            first, *rest = waited(rekindle, "restored")
            assert rest == list(range(first + 1, first + 1 + len(rest)))
            rekindle("kill", "restored")
            rekindle("rm", "restored")


def test_a_program_whose_gpu_never_rests_is_taken_all_the_same():
    with Rekindle() as rekindle:
        end, lines = rekindle.root / "end", lambda name: len(rekindle.lines(name))
        rekindle.run("busy", sys.executable, BUSY, LONG, end)
        rekindle.wait(lambda: lines("busy") > 2, "kernels")
        report = rekindle.json("checkpoint", "busy", "--to", "image", "--leave-running")
        (waited_us,) = (phase["duration_us"] for phase in report["phases"] if phase["name"] == "wait for a moment")
        assert waited_us >= 450_000, "half a second was to pass"
        known = lines("busy")
        rekindle.wait(lambda: lines("busy") > known + 2, "more kernels")
        rekindle("kill", "busy")
        rekindle.restore("image", "restored")
        rekindle.wait(lambda: lines("restored") > 2, "kernels after the restore")
        end.touch()
        rekindle.wait(lambda: rekindle.lines("restored")[-1].startswith("ok"), "the result")


def images(rekindle):
    return [image["name"] for image in rekindle.json("images")["images"]]


def test_an_image_has_what_was_there_at_the_cut_whatever_is_written_while_it_is_drained():
    with Rekindle(**HELD) as rekindle:
        steps = Steps(rekindle)
        steps.take(3)
        checkpoint = taken(rekindle)
        steps.take(4)
        rekindle.let_go("drain-begun")
        report = json.loads(checkpoint.end())
        names = [phase["name"] for phase in report["phases"]]
        assert {"reference", "shadow copy", "drain"} <= set(names) and "GPU memory" not in names, names
        begins = {phase["name"]: phase["start_us"] for phase in report["phases"]}
        assert begins["code"] < begins["quiesce"], "code is written before the program stands still"
        caught_up = {phase["lane"]: phase for phase in report["phases"] if phase["name"] == "catch up"}
        copied = sum(phase["bytes"] for phase in report["phases"] if phase["name"] in ("copy ahead", "copy again"))
        # At 5 GB a second.
        assert caught_up["cpu pages"]["duration_us"] >= min(100_000, report["stopped_us"], copied // 5_000)
        assert begins["drain"] >= caught_up["gpu half"]["start_us"] + caught_up["gpu half"]["duration_us"]
        steps.take(1)
        rekindle("kill", "steps")
        rekindle("verify", "image")
        steps.set(6)
        rekindle.restore("image", "restored")
        assert rekindle.wait_lines("restored", 3) == told(4, 6)


def test_where_it_is_not_wanted_the_program_stands_still_until_all_is_written():
    with Rekindle(REKINDLE_TUNING="gpu.shadow=off") as rekindle:
        steps = Steps(rekindle)
        steps.take(2)
        report = rekindle.json("checkpoint", "steps", "--to", "image", "--leave-running")
        names = [phase["name"] for phase in report["phases"]]
        assert "GPU memory" in names and "drain" not in names, names
        steps.take(2)


def test_what_was_written_since_the_image_before_is_told():
    with Rekindle() as rekindle:
        steps = Steps(rekindle)
        steps.take(1)
        written = []
        for number in range(3):
            report = rekindle.json("checkpoint", "steps", "--to", f"image-{number}", "--leave-running")
            written.append(report.get("written"))
            # A step writes all of its buffer.
            steps.take([1, 0, 0][number])
        assert written[0] is None and [one["gpu_bytes"] for one in written[1:]] == [24 << 20, 0], written
        assert all(0 < one["since_us"] < PATIENCE * 1e6 for one in written[1:]), written
        traces = rekindle.json("trace", "steps", "--svg", rekindle.root / "picture")["traces"]
        assert [trace.get("written") for trace in traces] == written
        shown = rekindle("trace", "steps", "--svg", rekindle.root / "picture")
        assert re.search(r"written since the image before, [0-9.]+ ms: 0 B of GPU memory \(0 B/s\)", shown), shown


def test_the_next_image_copies_only_what_has_changed():
    with Rekindle(REKINDLE_GPU_HASH="on") as rekindle:
        steps = Steps(rekindle)
        steps.take(1)
        reports = [rekindle.json("checkpoint", "steps", "--to", f"image-{n}", "--leave-running") for n in range(2)]
        for n in range(2):
            rekindle("verify", f"image-{n}")
        rekindle("kill", "steps")
        rekindle.restore("image-1", "restored")
        steps.set(2)
        assert rekindle.wait_lines("restored", 1) == told(2, 2)
        first, second = (next(phase for phase in report["phases"] if phase["name"] == "drain") for report in reports)
        assert first["from"]["GPU"] > 0 and second["from"] == {"store": second["bytes"]}, (first, second)


def test_a_program_of_which_nothing_is_new_does_not_catch_up_for_long():
    with Rekindle(REKINDLE_GPU_HASH="on") as rekindle:
        Steps(rekindle).take(1)
        shares = []
        for number in range(4):
            report = rekindle.json("checkpoint", "steps", "--to", f"image-{number}", "--leave-running")
            (caught_up,) = (phase["duration_us"] for phase in report["phases"] if (phase["lane"], phase["name"]) == ("gpu half", "catch up"))
            shares.append(caught_up / min(100_000, report["stopped_us"]))
        # The machine's other work may take that time, but not always.
        assert min(shares[1:]) < 0.5, shares


BEHIND = PROGRAM.with_name("behind.py")


def behind(rekindle, *kind, program=BEHIND, options=()):
    """A program that has long kernels enqueued, and the folder that it looks into."""
    place = rekindle.root / "behind"
    place.mkdir()
    command = (sys.executable, program, place, LONG, *kind)
    rekindle("run", "-d", "--name", "behind", "--gpu", rekindle.gpu, *options, "--", *command)
    assert rekindle.wait_lines("behind", 1) == ["enqueued"], rekindle.lines("behind")
    return place


def left(lines, more=0):
    """What the kernels leave that the program has counted, and as many steps more."""
    (count,) = (int(line.split()[1]) for line in lines if line.startswith("count"))
    return (pow(3, LONG * count + more, 1 << 33) - 1) // 2 % (1 << 32)


def ran_on_before_the_gpu_was_done(report):
    phases = {phase["name"]: phase for phase in report["phases"]}
    work = phases.get("the program's work", {"start_us": 0, "duration_us": 0})
    return work["start_us"] + work["duration_us"] > phases["quiesce"]["start_us"] + report["stopped_us"]


def cut(rekindle, place, is_checked=False, waits=()):
    """Takes the program that has kernels enqueued, and has it go on before they have ended, or then if that `waits`; then it is to
    look."""
    begun = rekindle.begin("checkpoint", "behind", "--to", "image", "--leave-running", "--json")
    rekindle.reached("frozen")
    (place / "on").touch()
    rekindle.let_go("frozen")
    assert rekindle.wait_lines("behind", 2)[1] == "went on"
    report = json.loads(begun.end())
    assert is_checked or bool(waits) != ran_on_before_the_gpu_was_done(report), report["phases"]
    assert [wait["why"] for wait in report.get("waited", [])] == list(waits)
    (place / "look").touch()


def looks_again(rekindle, place):
    """What is in the image."""
    for file in place.iterdir():
        file.unlink()
    (place / "look").touch()
    rekindle.restore("image", "restored")
    return rekindle.wait_end("restored")


SHARED = ("--share", "us")
# With pinned memory that nothing writes to, and to which a copy or a kernel does, the last by an address in memory.
PINNED = ["unwritten", "pinned", "argument", "hidden"]
CHECK = ",gpu.shadow=check"
CUTS = [*((kind, check, ()) for kind in ["", *PINNED] for check in ["", CHECK])]
CUTS += [("", "", SHARED), ("hidden", "", SHARED), ("", "", (*SHARED, "--share-memory", "lazy"))]


@pytest.mark.parametrize(("kind", "check", "options"), CUTS)
def test_an_image_has_what_enqueued_work_leaves_and_nothing_of_what_comes_after(kind, check, options):
    with Rekindle(REKINDLE_TUNING=f"gpu.moment=off{check}", REKINDLE_FAULT="frozen:hang") as rekindle:
        place = behind(rekindle, kind, options=options)
        cut(rekindle, place, is_checked=bool(check))
        lines = rekindle.wait_end("behind")
        assert lines[:3] == ["enqueued", "went on", "gave back"]
        # The step that comes after all kernels writes to memory of the GPU alone.
        assert lines[4:] == [*pinned(kind, lines), f"buffer {left(lines, 5)}", "new 77", "legacy 77", "mapped 4"]
        lines = looks_again(rekindle, place)
        assert lines[1:] == [*pinned(kind, lines), f"buffer {left(lines)}", "new 1", "legacy 2", "freed 3", "mapped 4"]


def pinned(kind, lines):
    """What a program of this kind says of pinned memory after what it has counted."""
    return {"": [], "timed": [], "unwritten": ["pinned 0"], "forked": ["pinned 0"]}.get(kind, [f"pinned {left(lines)}"])


# A kernel of one may wait for one of another that was not launched yet.
SEVERAL = "it has several GPUs, whose work may wait for each other's"


@pytest.mark.parametrize("options", [(), SHARED], ids=["alone", "shared"])
def test_the_cut_of_several_gpus_is_one_and_comes_when_their_work_has_ended(options):
    with Rekindle("emulated:devices=3", REKINDLE_TUNING="gpu.moment=off", REKINDLE_FAULT="frozen:hang") as rekindle:
        place = behind(rekindle, program=BEHIND.with_name("gpus.py"), options=options)
        cut(rekindle, place, waits=[SEVERAL])
        lines = rekindle.wait_end("behind")
        assert lines[3:] == [f"result {left(lines)}", "second's own 77", "by second 77", "by third 77"]
        lines = looks_again(rekindle, place)
        assert lines[1:] == [f"result {left(lines)}", "second's own 1", "by second 2", "by third 3"]


def test_images_of_several_gpus_are_what_memory_held():
    with Rekindle("emulated:devices=3", REKINDLE_TUNING="gpu.moment=off,gpu.shadow=check") as rekindle:
        place = behind(rekindle, program=BEHIND.with_name("gpus.py"))
        for number in range(2):
            rekindle("checkpoint", "behind", "--to", f"image-{number}", "--leave-running")
            rekindle("verify", f"image-{number}")
        (place / "look").touch()
        lines = rekindle.wait_end("behind")
        assert f"result {left(lines)}" in lines


def test_a_program_that_uses_its_second_gpu_goes_on_with_that_after_images_that_are_checked():
    with Rekindle("emulated:devices=2", REKINDLE_TUNING="gpu.moment=off,gpu.shadow=check") as rekindle:
        rekindle.run("second", sys.executable, PROGRAM.with_name("second.py"), rekindle.root / "end", ROUNDS)
        assert rekindle.wait_lines("second", 1) == ["ready"], rekindle.lines("second")
        for number in range(3):
            rekindle("checkpoint", "second", "--to", f"image-{number}", "--leave-running")
        (rekindle.root / "end").touch()
        assert rekindle.wait_end("second") == ["ready", "ok"]


def test_copies_that_wait_for_their_turn_on_the_link_come_before_the_cut():
    with Rekindle(REKINDLE_TUNING="gpu.moment=off", REKINDLE_FAULT="frozen:hang", REKINDLE_LINK="piece=256K,window=1M") as rekindle:
        place = behind(rekindle, "uploads", options=SHARED)
        cut(rekindle, place)
        rekindle.wait_end("behind")
        lines = looks_again(rekindle, place)
        (count,) = (line.split()[1] for line in lines if line.startswith("count"))
        assert lines[1:] == [f"buffer {left(lines)}", "new 1", "legacy 2", "freed 3", "mapped 4", f"uploaded {(int(count) - 1) % 7}"]


def test_programs_of_a_context_do_not_wait_for_a_copy_of_another_one():
    with Rekindle(REKINDLE_TUNING="gpu.moment=off", REKINDLE_FAULT="drain-begun:hang") as rekindle:
        steps, place = Steps(rekindle, options=SHARED), behind(rekindle, options=SHARED)
        assert rekindle.sandbox("steps")["workers"] == rekindle.sandbox("behind")["workers"]
        steps.take(1)
        began = time.monotonic()
        begun = rekindle.begin("checkpoint", "behind", "--to", "image", "--leave-running", "--json")
        rekindle.reached("drain-begun")
        rekindle.let_go("drain-begun")
        steps.take(3)
        took_us = (time.monotonic() - began) * 1e6
        report = json.loads(begun.end())
        assert ran_on_before_the_gpu_was_done(report), report["phases"]
        work = next(phase for phase in report["phases"] if phase["name"] == "the program's work")
        assert took_us < work["start_us"] + work["duration_us"], "its answers came before the copy was made"
        (place / "look").touch()
        lines = rekindle.wait_end("behind")
        assert f"buffer {left(lines)}" in lines
        steps.take(1)


def test_a_program_that_ends_before_its_copy_is_made_leaves_its_context_to_others():
    with Rekindle(REKINDLE_TUNING="gpu.moment=off", REKINDLE_FAULT="drain-begun:hang") as rekindle:
        steps = Steps(rekindle, options=SHARED)
        behind(rekindle, options=SHARED)
        begun = rekindle.begin("checkpoint", "behind", "--to", "image", "--leave-running", "--json")
        rekindle.reached("drain-begun")
        rekindle.let_go("drain-begun")
        os.kill(rekindle.sandbox("behind")["pid"], signal.SIGKILL)
        with pytest.raises(CommandError):
            begun.end()
        rekindle.wait(lambda: not rekindle.sandbox("behind")["pid"], "the program's end")
        steps.take(2)
        assert not images(rekindle)
        rekindle("checkpoint", "steps", "--to", "image", "--leave-running")
        steps.take(1)
        rekindle("verify", "image")


def last_trace(rekindle, name):
    return rekindle.json("trace", name, "--svg", rekindle.root / "picture")["traces"][-1]


@pytest.mark.parametrize(("kind", "tuning"), [("timed", ""), ("hidden", ",cpu.precopy=off"), ("forked", "")])
def test_an_image_waits_for_work_that_is_timed_and_where_nobody_knows_what_is_written_to_pinned_memory(kind, tuning):
    with Rekindle(REKINDLE_TUNING=f"gpu.moment=off{tuning}") as rekindle:
        place = behind(rekindle, kind)
        report = rekindle.json("checkpoint", "behind", "--to", "image", "--leave-running")
        assert "the program's work" in [phase["name"] for phase in report["phases"]]
        assert not ran_on_before_the_gpu_was_done(report), report["phases"]
        (wait,) = report["waited"]
        assert ("events" if kind == "timed" else "pinned memory") in wait["why"]
        assert 1000 <= wait["duration_us"] <= report["stopped_us"]
        assert last_trace(rekindle, "behind")["waited"] == [wait]
        rekindle("kill", "behind")
        (place / "look").touch()
        rekindle.restore("image", "restored")
        lines = rekindle.wait_end("restored")
        assert f"buffer {left(lines)}" in lines and set(pinned(kind, lines)) < set(lines)


def test_an_image_of_a_program_that_writes_to_pinned_memory_meanwhile_is_taken_again_and_waits():
    with Rekindle(REKINDLE_TUNING="gpu.moment=off", REKINDLE_FAULT="behind-copied:hang") as rekindle:
        place = behind(rekindle, "unwritten")
        begun = rekindle.begin("checkpoint", "behind", "--to", "image", "--leave-running", "--json")
        rekindle.reached("behind-copied")
        (place / "touch").touch()
        rekindle.wait(lambda: "wrote" in rekindle.lines("behind"), "the program's write")
        rekindle.let_go("behind-copied")
        report = json.loads(begun.end())
        names = [phase["name"] for phase in report["phases"]]
        assert names.count("freeze") == 2, "the first image is given up"
        later = rekindle.json("checkpoint", "behind", "--to", "later", "--leave-running")
        assert [phase["name"] for phase in later["phases"]].count("freeze") == 1, "nobody tries that again"
        rekindle("kill", "behind")
        for image in ("image", "later"):
            for file in place.iterdir():
                file.unlink()
            (place / "look").touch()
            rekindle.restore(image, image)
            lines = rekindle.wait_end(image)
            assert "pinned 55" in lines, lines


@pytest.mark.parametrize("options", [(), SHARED], ids=["alone", "shared"])
def test_images_of_enqueued_work_are_what_memory_held(options):
    with Rekindle(REKINDLE_TUNING="gpu.moment=off,gpu.shadow=check") as rekindle:
        command = (sys.executable, BUSY, LONG, rekindle.root / "end")
        rekindle("run", "-d", "--name", "busy", "--gpu", rekindle.gpu, *options, "--", *command)
        rekindle.wait(lambda: len(rekindle.lines("busy")) > 2, "kernels")
        for number in range(3):
            rekindle("checkpoint", "busy", "--to", f"image-{number}", "--leave-running")
            rekindle("verify", f"image-{number}")
        (rekindle.root / "end").touch()
        assert rekindle.wait_end("busy")[-1].startswith("ok")
        rekindle.restore("image-2", "restored")
        assert rekindle.wait_end("restored")[-1].startswith("ok")


def test_a_moment_that_did_not_come_is_waited_for_less_the_next_time():
    with Rekindle() as rekindle:
        behind(rekindle)
        reports = [rekindle.json("checkpoint", "behind", "--to", f"image-{n}", "--leave-running") for n in range(2)]
        phases = [phase for report in reports for phase in report["phases"]]
        first, second = (phase["duration_us"] for phase in phases if phase["name"] == "wait for a moment")
        assert second < first / 2, (first, second)
        assert all(ran_on_before_the_gpu_was_done(report) for report in reports)


def test_without_it_programs_wait_for_the_gpu_and_it_is_said_for_how_long():
    with Rekindle(REKINDLE_TUNING="gpu.moment=off,gpu.behind=off") as rekindle:
        behind(rekindle)
        said = rekindle("checkpoint", "behind", "--to", "image", "--leave-running")
        assert re.search(r"for [0-9.]+ ms of that it waited for its GPU's work, since .*`gpu\.behind=off`", said), said
        assert not ran_on_before_the_gpu_was_done(last_trace(rekindle, "behind"))


def test_an_image_takes_the_room_of_the_image_before_over():
    # Also where it is quiet for a moment, or for longer than it is waited for: the memory stays until the next image then.
    with Rekindle(**CHECKED, REKINDLE_FAULT="copy-given-back") as rekindle:
        rekindle.run("busy", sys.executable, BUSY, ROUNDS, rekindle.root / "end")
        rekindle.wait(lambda: len(rekindle.lines("busy")) > 2, "kernels")
        room = []
        for number in range(3):
            report = rekindle.json("checkpoint", "busy", "--to", f"image-{number}", "--leave-running")
            begins = {phase["name"]: phase["start_us"] for phase in report["phases"]}
            assert begins["room for a copy"] < begins["quiesce"], "it is made before the program stands still"
            room += [phase["bytes"] for phase in report["phases"] if phase["name"] == "room for a copy"]
            rekindle("verify", f"image-{number}")
        assert room[0] > 0 and room[1:] == [0, 0], room


def test_room_for_a_copy_that_is_not_made_goes_to_the_program():
    with Rekindle(REKINDLE_FAULT="copy-room-made", REKINDLE_EMULATED="memory=64M") as rekindle:
        steps = Steps(rekindle, 30 << 20)
        steps.take(2)
        with pytest.raises(CommandError, match="copy-room-made"):
            rekindle("checkpoint", "steps", "--to", "image", "--leave-running")
        steps.set("fill")
        assert rekindle.wait_lines("steps", steps.count + 2)[-1] == "filled"


def test_a_program_that_needs_all_memory_meanwhile_gets_it():
    with Rekindle(**HELD, REKINDLE_EMULATED="memory=64M") as rekindle:
        steps = Steps(rekindle, 30 << 20)
        steps.take(2)
        checkpoint = taken(rekindle)
        steps.set("fill")
        rekindle.let_go("drain-begun")
        checkpoint.end()
        rekindle.wait(lambda: "filled" in rekindle.lines("steps"), "the memory")
        rekindle("verify", "image")


def test_a_drain_that_fails_ends_the_checkpoint_and_not_the_program():
    with Rekindle(REKINDLE_FAULT="drain-begun") as rekindle:
        steps = Steps(rekindle)
        steps.take(2)
        with pytest.raises(CommandError, match="drain-begun"):
            rekindle("checkpoint", "steps", "--to", "image", "--leave-running")
        steps.take(2)
        assert not images(rekindle) and not os.listdir(rekindle.state / "store/staging")


def test_a_daemon_that_is_killed_meanwhile_leaves_the_program_and_no_image():
    with Rekindle(**HELD) as rekindle:
        steps = Steps(rekindle)
        steps.take(2)
        checkpoint = taken(rekindle)
        kill_daemon(rekindle)
        with pytest.raises(CommandError):
            checkpoint.end()
        rekindle.let_go("drain-begun")
        steps.take(3)
        assert not images(rekindle)
        rekindle("checkpoint", "steps", "--to", "image", "--leave-running")
        steps.take(1)
        rekindle("verify", "image")


def test_a_program_that_is_killed_meanwhile_leaves_no_image():
    with Rekindle(**HELD) as rekindle:
        Steps(rekindle).take(2)
        checkpoint = taken(rekindle)
        os.kill(rekindle.sandbox("steps")["pid"], signal.SIGKILL)
        rekindle.wait(lambda: not rekindle.sandbox("steps")["pid"], "the program's end")
        rekindle.let_go("drain-begun")
        with pytest.raises(CommandError):
            checkpoint.end()
        assert not images(rekindle)
