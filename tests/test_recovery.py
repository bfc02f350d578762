"""Programs that are brought back by themselves, `run --every --restart`: after whatever ends them, and not after what was wanted."""

import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from interleavings import kills, machine
from rekindle import CommandError, Rekindle

COUNTER, STEPS, GPU_STEPS, FAULTY = (Path(__file__).parent / "recovery" / f"{name}.py" for name in ("counter", "steps", "gpu_steps", "faulty"))


@pytest.fixture
def rekindle():
    with Rekindle() as rekindle:
        yield rekindle


def run(rekindle, *options, detach=("-d",)):
    return ("run", *detach, "--name", "a", *options, "--", sys.executable, COUNTER, rekindle.root)


def recovery(rekindle):
    return rekindle.sandbox("a")["recovery"]


def has_images(rekindle, number):
    """Waits until an image with at least this number is there."""

    def is_there():
        return any(int(name.split(".")[1]) >= number for name in recovery(rekindle)["images"])

    rekindle.wait(is_there, f"image {number}")


def has_image_since(rekindle, is_so, what):
    """Waits until something is so of the program, and then for an image of that."""
    rekindle.wait(is_so, what)
    # What is there may be older, and the next one under way.
    numbers = [int(name.split(".")[1]) for name in recovery(rekindle)["images"]]
    has_images(rekindle, max(numbers, default=0) + 2)


def has_counted(rekindle):
    has_image_since(rekindle, lambda: len(rekindle.lines("a")) >= 3, "3 lines")


def crash(rekindle):
    """Ends the program from outside: an image never has it in the middle of that."""
    os.kill(rekindle.sandbox("a")["pid"], signal.SIGKILL)


def is_back(rekindle, times):
    def is_so():
        row = rekindle.sandbox("a")
        return row["state"] == "running" and row["recovery"]["recoveries"] == times

    rekindle.wait(is_so, f"recovery {times}")


def comes_back(rekindle, lost=None):
    """However often that is tried: until the program has gone on for some steps, with a worker that is not the lost one."""
    first = {}

    def is_so():
        row = rekindle.sandbox("a")
        step = kills.steps(row["pid"]).get(0, 0) if row["pid"] else 0
        has_worker = row["workers"] and lost not in row["workers"]
        return has_worker and row["recovery"]["recoveries"] and row["state"] == "running" and step > first.setdefault(row["pid"], step) + 1

    rekindle.wait(is_so, "it to be back")


def runs_of(rekindle):
    """What each run of the program has printed."""
    runs = re.split(r"--- rekindle: .* ---\n", rekindle("logs", "a"))
    return [[int(line) for line in text.split()] for text in runs]


def end(rekindle):
    (rekindle.root / "end").touch()
    rekindle.wait(lambda: recovery(rekindle)["over"], "the end of it")


def test_after_a_crash_it_goes_on_from_its_last_image(rekindle):
    rekindle(*run(rekindle, "--every", "300ms", "--keep", "2", "--restart", "on-failure"))
    for times in (1, 2):
        has_counted(rekindle)
        crash(rekindle)
        is_back(rekindle, times)
    end(rekindle)
    row = rekindle.sandbox("a")
    assert (row["state"], row["exit_code"]) == ("exited", 0)
    found = row["recovery"]
    assert found["over"] and found["recoveries"] == 2 and found["repeated_ms"] > 0
    assert len(found["images"]) == 2
    assert {image["name"]: image["series"] for image in rekindle.json("images")["images"]} == dict.fromkeys(found["images"], "a")
    (used,) = rekindle.json("stats", "--no-stream", "a")["sandboxes"]
    assert used["recovery"] == found
    runs = runs_of(rekindle)
    assert len(runs) == 3
    for before, after in zip(runs, runs[1:], strict=False):
        assert 1 < after[0] <= before[-1] + 1, (before[-1], after[0])
        assert after == list(range(after[0], after[0] + len(after)))


def test_without_an_image_it_starts_anew_and_a_loop_ends(rekindle):
    (rekindle.root / "loop").touch()
    rekindle(*run(rekindle, "--restart", "on-failure:2"))
    rekindle.wait(lambda: recovery(rekindle)["over"] and rekindle.sandbox("a")["problem"], "the end of it")
    row = rekindle.sandbox("a")
    assert (row["state"], row["exit_code"], row["recovery"]["recoveries"]) == ("exited", 4, 2)
    assert "failed 3 times" in row["problem"] and "code 4" in row["problem"] and "no image" in row["problem"]
    assert runs_of(rekindle) == [[1], [1], [1]]
    assert "started anew" in rekindle("logs", "a")


def test_what_the_user_ends_stays_ended(rekindle):
    for how in ((), ("--signal", "9"), ("--signal", "15")):
        rekindle(*run(rekindle, "--every", "1h", "--restart", "on-failure"))
        rekindle("kill", *how, "a")
        rekindle.wait(lambda: recovery(rekindle)["over"], "the end of it")
        row = rekindle.sandbox("a")
        assert row["state"] == "killed" and row["recovery"]["recoveries"] == 0


def test_the_next_daemon_goes_on_with_it(rekindle):
    began = time.monotonic()
    rekindle(*run(rekindle, "--every", "300ms", "--restart", "on-failure"))
    has_counted(rekindle)
    row = rekindle.sandbox("a")
    init = int(machine.status(row["pid"], "PPid"))
    os.kill(machine.daemon(rekindle), signal.SIGKILL)
    # As if the machine had ended.
    for pid in machine.tree(row["pid"]):
        kills.strike(pid)
    # It notes the end of the program before its own.
    rekindle.wait(lambda: not machine.is_alive(init), "the end of the program")
    ran, away = time.monotonic() - began, 3
    time.sleep(away)
    is_back(rekindle, 1)
    found = recovery(rekindle)
    assert found["lost_ms"] >= away * 1000 and found["repeated_ms"] <= ran * 1000, found
    has_counted(rekindle)
    end(rekindle)
    assert runs_of(rekindle)[1][0] > 1


def begun(rekindle):
    """When each image of the program was begun, in seconds."""
    traces = rekindle.json("trace", "a", "--svg", rekindle.root / "picture.svg")["traces"]
    taken = [trace["began"] for trace in traces if trace["operation"] == "checkpoint"]
    return [datetime.fromisoformat(began).timestamp() for began in taken]


@pytest.mark.parametrize("takes", [2, 5])
def test_the_interval_is_from_the_beginning_of_one_image_to_that_of_the_next(takes):
    """Where an image takes longer the next one follows at once."""
    interval = 3
    with Rekindle(REKINDLE_FAULT="before-commit:hang") as rekindle:
        rekindle(*run(rekindle, "--every", f"{interval}s", "--restart", "on-failure"))
        rekindle.reached("before-commit")
        time.sleep(takes)
        rekindle.let_go("before-commit")
        has_images(rekindle, 2)
        first, second = begun(rekindle)[:2]
        # Counted from its end it would be later by the whole interval.
        assert max(interval, takes) - 0.1 <= second - first < max(interval, takes) + 0.9 * interval
        end(rekindle)


def test_what_is_ended_while_it_waits_to_be_brought_back_stays_ended(rekindle):
    (rekindle.root / "loop").touch()
    rekindle(*run(rekindle, "--restart", "on-failure:100"))
    rekindle.wait(lambda: recovery(rekindle)["recoveries"] >= 3, "some failures")
    # It waits for seconds by now and runs for the time of a step.
    rekindle("kill", "a")
    (rekindle.root / "loop").unlink()

    def stays():
        return recovery(rekindle)["over"] and not rekindle.sandbox("a")["pid"]

    rekindle.wait(stays, "the end of it")
    time.sleep(3)
    assert stays()


def run_on_gpu(rekindle):
    """A program that has memory there, once there is an image of it. It writes to this file if it has not what it should have."""
    wrong = rekindle.root / "wrong"
    rekindle(
        "run", "-d", "--name", "a", "--every", "500ms", "--restart", "on-failure", "--gpu", "emulated", "--", *kills.words(0, 0, 1, "root", wrong)
    )
    has_image_since(rekindle, lambda: kills.steps(rekindle.sandbox("a")["pid"]), "the program")
    return wrong


def test_one_without_its_gpu_memory_is_brought_back(rekindle):
    wrong = run_on_gpu(rekindle)
    (worker,) = rekindle.sandbox("a")["workers"]
    os.kill(worker, signal.SIGKILL)
    is_back(rekindle, 1)
    # Written while its memory was gone.
    wrong.unlink(missing_ok=True)
    kills.go_on(rekindle, rekindle.sandbox("a")["pid"])
    assert not wrong.exists()


def test_one_that_was_brought_back_is_ended_with_its_worker_and_brought_back_again():
    with Rekindle(REKINDLE_FAULT="checkpoint-begun:hang") as rekindle:
        rekindle.let_go("checkpoint-begun")
        wrong = run_on_gpu(rekindle)
        crash(rekindle)
        comes_back(rekindle)
        # No image has what follows.
        rekindle.hold_again("checkpoint-begun")
        rekindle.reached("checkpoint-begun")
        row = rekindle.sandbox("a")
        # It asks the GPU for nothing any more, and does not end by itself.
        for pid in machine.tree(row["pid"]):
            os.kill(pid, signal.SIGSTOP)
        (worker,) = row["workers"]
        os.kill(worker, signal.SIGKILL)
        rekindle.wait(lambda: not machine.is_alive(row["pid"]), "its end", limit=20)
        rekindle.let_go("checkpoint-begun")
        rekindle.wait(lambda: recovery(rekindle)["recoveries"] > row["recovery"]["recoveries"], "the next recovery")
        comes_back(rekindle, worker)
        kills.go_on(rekindle, rekindle.sandbox("a")["pid"])
        assert not wrong.exists()


@pytest.mark.parametrize("point", ["restore-created", "restore-vacant", "restore-complete", "restore-running"])
def test_a_daemon_that_is_killed_while_it_brings_it_back_leaves_that_to_the_next(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        wrong = run_on_gpu(rekindle)
        crash(rekindle)
        rekindle.reached(point)
        os.kill(machine.daemon(rekindle), signal.SIGKILL)
        rekindle.let_go(point)
        comes_back(rekindle)
        assert not wrong.exists() and len(rekindle.sandboxes()) == 1


@pytest.mark.parametrize("point", ["restore-vacant", "loading-begun", "restore-released", "restore-running"])
def test_a_worker_that_is_killed_while_it_is_brought_back_has_it_brought_back_with_another(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        wrong = run_on_gpu(rekindle)
        crash(rekindle)
        rekindle.reached(point)
        rekindle.wait(lambda: rekindle.sandbox("a")["workers"], "its worker")
        (worker,) = rekindle.sandbox("a")["workers"]
        os.kill(worker, signal.SIGKILL)
        rekindle.let_go(point)
        comes_back(rekindle, worker)
        # Written while its memory was gone.
        wrong.unlink(missing_ok=True)
        kills.go_on(rekindle, rekindle.sandbox("a")["pid"])
        assert not wrong.exists()


@pytest.mark.parametrize("options", [(), ("--mend",)], ids=["plain", "mended"])
def test_after_a_fault_of_a_kernel_it_goes_on_from_an_image_before_it(rekindle, options):
    fault, go = rekindle.root / "fault", rekindle.root / "go"
    command = [sys.executable, FAULTY, fault, go]
    rekindle("run", "-d", "--name", "a", "--every", "300ms", "--restart", "on-failure", *options, "--gpu", "emulated", "--", *command)
    has_counted(rekindle)
    fault.touch()
    rekindle.wait(lambda: rekindle.lines("a")[-1] == "CUDA_ERROR_ILLEGAL_ADDRESS", "the fault")
    *counts, _ = rekindle.lines("a")
    # Of a context that has failed there is no image.
    rekindle.wait(lambda: "was not taken: " in (rekindle.sandbox("a")["problem"] or ""), "an image to be due")
    fault.unlink()
    go.touch()
    is_back(rekindle, 1)
    after = [int(line) for line in rekindle.wait_lines("a", 3)]
    assert 1 < after[0] <= int(counts[-1]) + 1 and after == list(range(after[0], after[0] + len(after))), (counts[-1], after)


def test_in_the_foreground_its_output_and_its_end_are_those_of_all_its_runs(rekindle):
    words = [rekindle.command, *map(str, run(rekindle, "--every", "300ms", "--restart", "on-failure", detach=()))]
    shown = subprocess.Popen(words, env=rekindle.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    rekindle.wait(lambda: any(row["name"] == "a" for row in rekindle.sandboxes()), "the program")
    has_images(rekindle, 1)
    crash(rekindle)
    is_back(rekindle, 1)
    (rekindle.root / "end").touch()
    output, _ = shown.communicate(timeout=120)
    assert shown.returncode == 0
    assert "--- rekindle: restored from the image" in output
    assert output == rekindle("logs", "a")


class Stepping:
    """A program that is imaged after each fifth step, and goes as far as it is told."""

    def __init__(self, rekindle, program, *options):
        self.rekindle, self.place = rekindle, rekindle.root
        (self.place / "steps").write_text("from an earlier run")
        (self.place / "limit").write_text("0")
        every = ("--every-steps", "5", "--step-file", "steps", "-w", self.place, "--restart", "on-failure")
        rekindle("run", "-d", "--name", "a", *every, *options, "--", sys.executable, program, self.place)
        self.step = 0
        self.goes_to(4)

    def goes_to(self, step):
        """One by one: changes of the file that nobody has looked at between are one step."""
        while self.step < step:
            self.step += 1
            (self.place / "next").write_text(str(self.step))
            (self.place / "next").rename(self.place / "limit")
            self.rekindle.wait(lambda: self.rekindle.lines("a")[-1:] == [str(self.step)], f"step {self.step}")

    def has_image(self, number):
        self.rekindle.wait(lambda: recovery(self.rekindle)["images"][-1:] == [f"a.{number}"], f"image {number}")


def test_images_are_taken_after_so_many_steps(rekindle):
    program = Stepping(rekindle, STEPS)
    program.goes_to(4)
    assert recovery(rekindle)["plan"]["steps"] == {"every": 5, "file": "steps"}
    # Nothing is due, however long it takes.
    time.sleep(0.3)
    assert recovery(rekindle)["images"] == []
    for number, step in enumerate((5, 10), 1):
        program.goes_to(step)
        program.has_image(number)
        program.goes_to(step + 4)
    crash(rekindle)
    is_back(rekindle, 1)
    program.goes_to(16)
    *_, first, last = runs_of(rekindle)
    assert first == list(range(1, 15)) and last == list(range(11, 17))
    rekindle("kill", "a")


def test_an_image_that_turns_out_to_be_damaged_is_passed_over(rekindle):
    program = Stepping(rekindle, GPU_STEPS, "--keep", "3", "--gpu", "emulated:bandwidth=32M")
    chunks = []
    for number, step in enumerate((5, 10), 1):
        program.goes_to(step)
        program.has_image(number)
        store = Path(rekindle.json("inspect", f"a.{number}")["path"]).parents[1] / "chunks"
        chunks.append({file for file in store.rglob("*") if file.is_file()})
    # What the newest image has of its own is all on the GPU.
    of_its_own = chunks[1] - chunks[0]
    assert of_its_own
    file = max(of_its_own)
    file.chmod(0o600)
    with file.open("r+b") as damaged:
        damaged.seek(file.stat().st_size // 2)
        damaged.write(bytes(64))
    crash(rekindle)
    # The damage is found when the program goes on.
    (program.place / "limit").write_text("8")
    is_back(rekindle, 2)
    rekindle.wait(lambda: rekindle.lines("a")[-1:] == ["8"], "step 8")
    logs = rekindle("logs", "a")
    assert [image for image in ("a.2", "a.1") if logs.count(f'restored from the image "{image}"') == 1] == ["a.2", "a.1"], logs
    assert runs_of(rekindle)[-1] == [6, 7, 8]
    rekindle("kill", "a")


def test_an_image_whose_daemon_died_before_it_was_noted_counts(rekindle):
    rekindle.environment["REKINDLE_FAULT"] = "committed:hang"
    program = Stepping(rekindle, STEPS, "--keep", "1")
    program.goes_to(6)
    rekindle.wait((rekindle.marks / "committed").exists, "the image")
    os.kill(machine.daemon(rekindle), signal.SIGKILL)
    del rekindle.environment["REKINDLE_FAULT"]
    program.has_image(1)
    program.goes_to(9)
    crash(rekindle)
    is_back(rekindle, 1)
    program.goes_to(40)

    def only_the_last_is_there():
        names = [image["name"] for image in rekindle.json("images")["images"]]
        return names == recovery(rekindle)["images"] and "a.1" not in names

    rekindle.wait(only_the_last_is_there, "the first one's end")
    rekindle("kill", "a")


def test_who_waits_to_be_brought_back_is_not_removed_with_those_that_have_ended(rekindle):
    (rekindle.root / "loop").touch()
    rekindle(*run(rekindle, "--restart", "on-failure:100"))
    rekindle("run", "--name", "other", "--", "true")
    rekindle.wait(lambda: recovery(rekindle)["recoveries"] >= 3, "some failures")
    while rekindle.sandbox("a")["pid"]:
        time.sleep(0.001)
    rekindle("prune", "--images")
    assert not any(row["name"] == "other" for row in rekindle.sandboxes())
    (rekindle.root / "loop").unlink()
    rekindle.wait(lambda: rekindle.sandbox("a")["pid"] and len(rekindle.lines("a")) > 10, "the program")
    end(rekindle)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--keep", "2"), "--every"),
        (("--every", "30"), "with its unit"),
        (("--every-steps", "0"), "--every-steps"),
        (("--step-file", "steps"), "--every-steps"),
        (("--every", "1ms"), "at least 100ms"),
        (("--restart", "always"), "on-failure:N"),
    ],
)
def test_what_is_not_understood_is_refused(rekindle, options, said):
    with pytest.raises(CommandError) as refused:
        rekindle(*run(rekindle, *options))
    assert refused.value.code == 2 and said in refused.value.message
