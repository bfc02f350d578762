"""Programs that copy at once over a link of 256 MB/s: in a context that they share, or in one each on a GPU of 64 MB/s."""

import contextlib
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon

COPIES = Path(__file__).parent / "link/copies.py"
GPU = "emulated:bandwidth=256M"
# What is under way when somebody comes takes 16 ms.
LINK = "piece=1M,window=4M"


# Copies of 4 MB take 63 ms there alone, and what is under way of other workers' for programs 8 ms.
SLOW, SLOW_LINK = "emulated:bandwidth=64M,common={}", "piece=256K,window=1M"


@pytest.fixture
def begin():
    """Makes a Rekindle with these settings of the link."""
    made = []

    def begin(link, **environment):
        made.append(Rekindle(GPU, REKINDLE_LINK=link, **environment).__enter__())
        return made[-1]

    yield begin
    for one in made:
        one.__exit__()


def start(rekindle, name, *arguments, options=(), gpu=GPU):
    sharing = ("--share", "us", *options)
    rekindle("run", "-d", *sharing, "--name", name, "--gpu", gpu, "--", sys.executable, COPIES, *arguments)


def worker(rekindle, name):
    (pid,) = rekindle.sandbox(name)["workers"]
    return pid


def times_beside_a_flood(rekindle):
    mark = rekindle.root / "mark"
    start(rekindle, "beside", "beside", mark)
    assert rekindle.wait_lines("beside", 1) == ["ready"]
    start(rekindle, "flood", "flood")
    rekindle.wait_lines("flood", 2)
    mark.touch()
    times = json.loads(rekindle.wait_lines("beside", 2)[1])
    assert worker(rekindle, "beside") == worker(rekindle, "flood")
    return times


def test_a_copy_waits_for_what_is_under_way_and_not_for_all_that_others_copy(begin):
    times = times_beside_a_flood(begin(LINK))
    # 8 MB take 31 ms alone, and twice as long in turn with another program.
    assert max(times["small"]) < 0.15 and max(times["large"]) < 0.4, times


def test_without_the_scheduler_it_waits_for_all(begin):
    times = times_beside_a_flood(begin("off"))
    assert max(times["small"]) > 0.4, times


def ratio(rekindle):
    """How many copies `heavy` makes while `light` makes 48."""
    for name in ("heavy", "light"):
        # What it had before the other one came, or was weighed anew.
        rekindle.wait_lines(name, len(rekindle.lines(name)) + 2)
    before = [len(rekindle.lines(name)) for name in ("light", "heavy")]
    rekindle.wait_lines("light", before[0] + 6)
    light, heavy = (len(rekindle.lines(name)) - count for name, count in zip(("light", "heavy"), before, strict=True))
    return heavy / light


def used(rekindle, name):
    (used,) = rekindle.json("stats", "--no-stream", name)["sandboxes"]
    return used


def test_programs_have_bytes_by_their_weights_which_change_while_they_run(begin):
    rekindle = begin(LINK)
    start(rekindle, "light", "steady")
    start(rekindle, "heavy", "steady", options=("--link-weight", 30))
    assert 2 < ratio(rekindle) < 4
    assert [used(rekindle, name)["link_weight"] for name in ("light", "heavy")] == [10, 30]
    assert used(rekindle, "light")["link_waited_us"] > 0
    assert worker(rekindle, "light") == worker(rekindle, "heavy")
    assert rekindle.json("limits", "heavy", "--link-weight", 10)["link_weight"] == 10
    assert 0.6 < ratio(rekindle) < 1.6
    assert used(rekindle, "heavy")["link_weight"] == 10


def test_an_image_keeps_the_weight_and_one_without_a_shared_context_has_none(begin):
    rekindle = begin(LINK)
    start(rekindle, "heavy", "steady", options=("--link-weight", 30))
    rekindle.wait_lines("heavy", 1)
    rekindle("checkpoint", "heavy", "--to", "heavy", "--stop")
    rekindle("restore", "-d", "heavy", "--share", "us", "--gpu", GPU)
    assert used(rekindle, "heavy")["link_weight"] == 30
    rekindle("kill", "heavy")
    rekindle("restore", "-d", "heavy", "--name", "own", "--gpu", GPU)
    assert used(rekindle, "own")["link_weight"] is None
    for arguments in (("limits", "own", "--link-weight", 3), ("run", "-d", "--link-weight", 3, "--", "true")):
        with pytest.raises(CommandError, match="--share TENANT"):
            rekindle(*arguments)


def rounds(rekindle, name, more):
    """Waits until so many more rounds were right."""
    count = len(rekindle.lines(name)) + more
    lines = rekindle.wait_lines(name, count)
    assert len(lines) >= count and all(line.endswith(" right") for line in lines), (name, lines)


def test_contents_are_right_beside_others_and_when_one_is_killed(begin):
    rekindle = begin("piece=256K,window=1M")
    start(rekindle, "flood", "flood")
    for seed in (1, 2):
        start(rekindle, f"random-{seed}", "random", seed)
    rekindle.wait_lines("flood", 1)
    for seed in (1, 2):
        rounds(rekindle, f"random-{seed}", 2)
    # It has copies that wait, and others under way.
    os.kill(rekindle.sandbox("flood")["pid"], signal.SIGKILL)
    rekindle.wait_end("flood")
    pid = worker(rekindle, "random-1")
    start(rekindle, "flood-2", "flood")
    rekindle.wait_lines("flood-2", 1)
    assert worker(rekindle, "flood-2") == pid
    for seed in (1, 2):
        rounds(rekindle, f"random-{seed}", 2)


def test_streams_of_another_gpu_wait_for_copies_whose_turn_has_not_come(begin):
    rekindle = begin("piece=256K,window=1M")
    gpu = f"{GPU},devices=2"
    start(rekindle, "flood", "flood", gpu=gpu)
    start(rekindle, "random", "random", 4, gpu=gpu)
    rounds(rekindle, "random", 30)
    assert worker(rekindle, "random") == worker(rekindle, "flood")


def test_a_mistake_is_told_on_the_gpu_that_it_was_made_on_also_where_it_waited_for_a_turn(begin):
    rekindle = begin("piece=256K,window=1M")
    start(rekindle, "wrong", "wrong", gpu=f"{GPU},devices=2")
    assert rekindle.wait_lines("wrong", 2) == ["told", "told"]


def test_a_program_with_copies_that_wait_is_imaged_and_goes_on_here_and_there(begin):
    rekindle = begin("piece=256K,window=1M")
    start(rekindle, "flood", "flood")
    start(rekindle, "random", "random", 3)
    rounds(rekindle, "random", 1)
    rekindle("checkpoint", "random", "--to", "first", "--leave-running")
    rounds(rekindle, "random", 2)
    rekindle("checkpoint", "random", "--to", "second", "--stop")
    for image, options in (("second", ("--share", "us")), ("first", ())):
        rekindle("restore", "-d", image, "--name", "again", "--gpu", GPU, *options)
        rounds(rekindle, "again", 2)
        rekindle("kill", "again")
        rekindle.wait_end("again")
    assert rekindle.sandbox("flood")["pid"]


@pytest.mark.parametrize("options", [(), ("--share", "us")], ids=["alone", "shared"])
@pytest.mark.parametrize("copies", [("between",), ("random", 5)], ids=["between", "random"])
def test_a_program_that_copies_between_gpus_is_imaged_again_and_again_and_each_image_is_right(begin, copies, options):
    rekindle = begin("piece=256K,window=1M", REKINDLE_TUNING="gpu.moment=off")
    gpu, images, met = f"{GPU},devices=2", [], copies[0] == "random"
    rekindle("run", "-d", *options, "--name", "program", "--gpu", gpu, "--", sys.executable, COPIES, *copies)
    # Whether a copy is under way when it is stopped is chance.
    while len(images) < 3 or (not met and len(images) < 30):
        rounds(rekindle, "program", 1)
        report = rekindle.json("checkpoint", "program", "--to", f"image-{len(images)}", "--leave-running")
        images.append(report["image"])
        met |= "waited" in report
    rounds(rekindle, "program", 1)
    rekindle("kill", "program")
    assert met, "no copy was under way"
    # The last one met a copy, if it was not one of the first.
    for image in images[-3:]:
        rekindle("restore", "-d", image, "--name", "again", "--gpu", gpu, *options)
        rounds(rekindle, "again", 2)
        rekindle("kill", "again")
        rekindle.wait_end("again")


def test_settings_of_the_link_that_are_none_are_said(begin):
    rekindle = begin("window=1")
    with pytest.raises(Exception, match="REKINDLE_LINK"):
        start(rekindle, "flood", "flood")
        rekindle.wait_lines("flood", 1)
        raise AssertionError("it ran")


class OneGpu:
    """Programs on one GPU whose link all workers have: `timed` copies all the time, `filled` has 48 MB."""

    def __init__(self, rekindle):
        self.rekindle, self.mark = rekindle, rekindle.root / "mark"
        self.gpu = SLOW.format(rekindle.root / "common")

    def run(self, name, *program, options=()):
        self.rekindle("run", "-d", *options, "--name", name, "--gpu", self.gpu, "--", sys.executable, COPIES, *program)
        self.rekindle.wait_lines(name, 1)

    def fill(self, name, seed, options=()):
        self.run(name, "filled", 48, seed, self.mark, options=options)

    def times(self):
        """When each round of `timed` began, and how long its copies to the GPU and back took."""
        rounds = [tuple(map(float, line.split())) for line in self.rekindle.lines("timed")]
        return [(began, there - began, back - there) for began, there, back in rounds]

    def alone(self):
        """What a copy to the GPU takes, and one back."""
        begun = len(self.rekindle.lines("timed"))
        self.rekindle.wait_lines("timed", begun + 6)
        _, *ways = zip(*self.times()[begun:], strict=True)
        return [statistics.median(way) for way in ways]

    def beside_a_drain(self, name):
        """How many times as long copies to the host take while the checkpoint of a program that goes on is written."""
        _, alone = self.alone()
        began = time.monotonic()
        report = self.rekindle.json("checkpoint", name, "--to", name, "--leave-running")
        (drain,) = [phase for phase in report["phases"] if phase["name"] == "drain"]
        start = began + drain["start_us"] / 1e6
        end = start + drain["duration_us"] / 1e6
        beside = [back for at, there, back in self.times() if start <= at + there and at + there + back <= end]
        assert len(beside) >= 4, (drain, self.times()[-10:])
        return statistics.median(beside) / alone

    def are_right(self, *names):
        """What they have is what they were filled with."""
        self.mark.touch()
        for name in names:
            self.rekindle.wait(lambda name=name: "right" in self.rekindle.lines(name), f"{name} to compare")


SHARED = ("--share", "us")


@pytest.mark.parametrize(("timed", "drained"), [((), ()), (SHARED, ()), ((), SHARED)], ids=["own", "shared-own", "own-shared"])
def test_what_a_program_copies_goes_before_what_is_written_of_those_of_other_workers(begin, timed, drained):
    rekindle = begin(SLOW_LINK)
    gpu = OneGpu(rekindle)
    gpu.fill("second", 2, options=drained)
    gpu.run("timed", "timed", options=timed)
    assert gpu.beside_a_drain("second") < 1.4
    gpu.are_right("second")
    assert worker(rekindle, "second") != worker(rekindle, "timed")


def test_a_restore_gives_way_to_no_program_of_another_worker(begin):
    rekindle = begin(SLOW_LINK)
    gpu = OneGpu(rekindle)
    gpu.fill("third", 3)
    rekindle("checkpoint", "third", "--to", "third", "--stop")
    gpu.run("flood", "flood")
    began = time.monotonic()
    rekindle("restore", "-d", "third", "--name", "again", "--gpu", gpu.gpu)
    gpu.are_right("again")
    # Alone it takes 0.75 s, with half of the link twice as long; with each sixteenth turn it would be 12 s.
    assert time.monotonic() - began < 8


def test_without_the_scheduler_it_shares_the_link_with_that(begin):
    gpu = OneGpu(begin("off"))
    gpu.fill("second", 2)
    gpu.run("timed", "timed")
    assert gpu.beside_a_drain("second") > 1.4


def test_whoever_is_killed_with_the_link_is_waited_for_no_longer(begin):
    rekindle = begin(SLOW_LINK)
    gpu = OneGpu(rekindle)
    gpu.fill("second", 2)
    gpu.run("flood", "flood")
    # It copies from one end to the other, and gets a turn now and then alone beside that.
    checkpoint = rekindle.begin("checkpoint", "second", "--to", "second", "--leave-running")
    os.kill(worker(rekindle, "flood"), signal.SIGKILL)
    checkpoint.end()
    gpu.run("timed", "timed")
    gpu.fill("victim", 4)
    checkpoint = rekindle.begin("checkpoint", "victim", "--to", "victim", "--leave-running")
    os.kill(worker(rekindle, "victim"), signal.SIGKILL)
    with contextlib.suppress(CommandError):
        checkpoint.end()
    gpu.fill("fresh", 5)
    assert gpu.beside_a_drain("fresh") < 1.4
    gpu.are_right("second", "fresh")


def test_workers_share_the_link_with_those_of_the_next_daemon(begin):
    rekindle = begin(SLOW_LINK)
    gpu = OneGpu(rekindle)
    gpu.run("timed", "timed")
    kill_daemon(rekindle)
    gpu.fill("second", 2)
    assert gpu.beside_a_drain("second") < 1.4
    gpu.are_right("second")
