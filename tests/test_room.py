"""Images of programs that go on where the GPU has no room for a copy of their memory: most of it is written while they run."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon
from test_cut import CHECKED

PROGRAM = Path(__file__).parent / "room/memory.py"
MB = 1 << 20
GPU = {**CHECKED, "REKINDLE_GPU_HASH": "on", "REKINDLE_EMULATED": "memory=64M"}
HELD_ROUND = {**GPU, "REKINDLE_FAULT": "gpu-ahead-round:hang"}
HELD_WAVE = {**GPU, "REKINDLE_FAULT": "gpu-ahead-wave:hang"}
# Nothing is drained yet of what has no copy.
HELD_GUARD = {**GPU, "REKINDLE_FAULT": "guarded:hang"}
# Of 64 MB a copy leaves 4 to others, and 14 are free.
WEIGHTS, STATE = 40 * MB, 8 * MB


class Memory:
    """The program, and what it is told."""

    def __init__(self, rekindle, weights=WEIGHTS, state=STATE, options=(), how=()):
        self.rekindle, self.name, self.commands = rekindle, "memory", rekindle.root / "commands"
        command = (sys.executable, PROGRAM, self.commands, weights, state, *how)
        rekindle("run", "-d", "--name", "memory", "--gpu", rekindle.gpu, *options, "--", *command)
        assert rekindle.wait_lines("memory", 1) == ["ready"], rekindle.lines("memory")

    def tell(self, command):
        with open(self.commands, "a") as file:
            file.write(f"{command}\n")

    def told(self, command):
        """What came of it: the last line."""
        count = len(self.rekindle.lines(self.name))
        self.tell(command)
        line = self.rekindle.wait_lines(self.name, count + 1)[count:]
        assert line and line[0].startswith(command), self.rekindle.lines(self.name)
        return line[0].removeprefix(command).strip()

    def check(self):
        assert self.told("check") == "weights True state True"

    def cut(self):
        """What it was told so far is in the image; the rest is not."""
        self.in_image = self.commands.read_text() if self.commands.exists() else ""

    def begin(self):
        self.cut()
        return self.rekindle.begin("checkpoint", self.name, "--to", "image", "--leave-running", "--json")

    def stays_untold(self, command):
        """It is not done yet; its line, once it is."""
        count = len(self.rekindle.lines(self.name))
        self.tell(command)
        time.sleep(0.3)
        assert len(self.rekindle.lines(self.name)) == count, self.rekindle.lines(self.name)
        return lambda: self.rekindle.wait_lines(self.name, count + 1)[count:]

    def restored(self):
        """It goes on from the image, and has what it had."""
        self.rekindle("verify", "image")
        self.rekindle("kill", self.name)
        self.commands.write_text(self.in_image)
        self.rekindle.restore("image", "restored")
        self.name = "restored"
        self.check()


def memory_of(report):
    (memory,) = report["memory"]
    return memory


def images(rekindle):
    return [image["name"] for image in rekindle.json("images")["images"]]


def nothing_is_left(rekindle):
    return not images(rekindle) and not os.listdir(rekindle.state / "store/staging")


def chunks(rekindle):
    return sum(len(files) for _, _, files in os.walk(rekindle.state / "store/chunks"))


def test_what_is_written_ahead_is_in_the_image_as_it_is_in_the_stop():
    with Rekindle(**HELD_ROUND) as rekindle:
        memory = Memory(rekindle)
        checkpoint = memory.begin()
        rekindle.reached("gpu-ahead-round")
        memory.told("state 2")
        memory.cut()
        rekindle.let_go("gpu-ahead-round")
        report = json.loads(checkpoint.end())
        taken = memory_of(report)
        assert taken["way"] == "ahead" and "takes" in taken["why"], taken
        assert taken["ahead_bytes"] >= WEIGHTS + STATE and taken["still_bytes"] == 0, taken
        assert STATE <= taken["new_bytes"] < WEIGHTS, taken
        names = [phase["name"] for phase in report["phases"]]
        assert {"write ahead", "hashes", "shadow copy", "drain"} <= set(names) and "GPU memory" not in names, names
        assert "written ahead" in rekindle("trace", "memory", "--svg", rekindle.root / "trace.svg")
        memory.told("state 3")
        memory.check()
        memory.restored()
        # What was written ahead and is not in the image is nowhere.
        rekindle("kill", "restored")
        rekindle("rmi", "image")
        assert chunks(rekindle) == 0 and nothing_is_left(rekindle)


def test_what_the_store_has_is_not_copied_on_the_gpu_either():
    with Rekindle(**HELD_WAVE) as rekindle:
        memory = Memory(rekindle)
        checkpoint = memory.begin()
        rekindle.reached("gpu-ahead-wave")
        rekindle.let_go("gpu-ahead-wave")
        checkpoint.end()
        # With a copy it would not come to an end.
        rekindle.hold_again("gpu-ahead-wave")
        report = rekindle.json("checkpoint", "memory", "--to", "second", "--leave-running")
        (ahead,) = (phase for phase in report["phases"] if phase["name"] == "write ahead")
        assert ahead["bytes"] >= WEIGHTS + STATE and ahead["from"] == {"store": ahead["bytes"]}, ahead
        rekindle.let_go("gpu-ahead-wave")
        memory.check()


def test_what_has_no_room_in_the_end_is_written_before_it_changes():
    with Rekindle(**{**HELD_ROUND, "REKINDLE_FAULT": "gpu-ahead-round:hang,written-ahead:hang"}) as rekindle:
        memory = Memory(rekindle, 40 * MB, 12 * MB)
        checkpoint = memory.begin()
        rekindle.reached("gpu-ahead-round")
        memory.told("state 2")
        rekindle.let_go("gpu-ahead-round")
        rekindle.reached("written-ahead")
        memory.told("state 3")
        memory.cut()
        rekindle.let_go("written-ahead")
        report = json.loads(checkpoint.end())
        taken = memory_of(report)
        assert taken["way"] == "ahead" and 0 < taken["guarded_bytes"] < taken["new_bytes"], taken
        assert taken["still_bytes"] == 0, taken
        (ahead,) = (phase for phase in report["phases"] if phase["name"] == "write ahead")
        assert ahead["counts"]["rounds"] == 2 and ahead["from"]["store"] >= 38 * MB, ahead
        memory.told("state 4")
        memory.restored()


def test_a_program_that_writes_to_nearly_all_of_its_memory_is_not_written_ahead_further():
    with Rekindle(**HELD_ROUND) as rekindle:
        memory = Memory(rekindle)
        checkpoint = memory.begin()
        rekindle.reached("gpu-ahead-round")
        memory.told("weights 2")
        memory.told("state 2")
        memory.cut()
        rekindle.let_go("gpu-ahead-round")
        taken = memory_of(json.loads(checkpoint.end()))
        assert taken["way"] == "still" and "writes to nearly all" in taken["why"], taken
        assert 0 < taken["guarded_bytes"] < taken["new_bytes"] and taken["still_bytes"] == 0, taken
        memory.restored()


def begun_without_a_copy(rekindle, options=(), how=()):
    """A program most of whose memory has no copy, and its image: nothing of that is in it yet, and the program goes on."""
    memory = Memory(rekindle, 24 * MB, 30 * MB, options, how)
    checkpoint = memory.begin()
    rekindle.reached("guarded")
    return memory, checkpoint


@pytest.mark.parametrize(
    ("way", "options"), [("state", ()), ("kernel", ()), ("called", ()), ("move", ()), ("kernel", ("--share", "us")), ("state", ("--mend",))]
)
def test_what_has_no_copy_is_in_the_image_before_a_request_changes_it(way, options):
    with Rekindle(**HELD_GUARD) as rekindle:
        memory, checkpoint = begun_without_a_copy(rekindle, options)
        # Who only looks does not wait.
        memory.check()
        line = memory.stays_untold(f"{way} 3")
        rekindle.let_go("guarded")
        assert line() == [f"{way} 3 written"]
        report = json.loads(checkpoint.end())
        taken = memory_of(report)
        assert taken["guarded_bytes"] > 16 * MB and taken["still_bytes"] == 0, taken
        assert "drain what has no copy" in [phase["name"] for phase in report["phases"]], report
        memory.check()
        memory.restored()


def test_a_kernel_that_has_another_address_of_what_has_no_copy_waits_too():
    with Rekindle(**HELD_GUARD) as rekindle:
        memory, checkpoint = begun_without_a_copy(rekindle, how=["twice"])
        line = memory.stays_untold("kernel 3")
        rekindle.let_go("guarded")
        assert line() == ["kernel 3 written"]
        taken = memory_of(json.loads(checkpoint.end()))
        assert taken["guarded_bytes"] > 16 * MB and taken["still_bytes"] == 0, taken
        memory.check()
        memory.restored()


@pytest.mark.parametrize("way", ["kernel", "hidden"])
def test_a_program_on_two_gpus_of_which_neither_has_room_is_imaged_as_it_was(way):
    with Rekindle("emulated:devices=2,memory=64M", **HELD_GUARD) as rekindle:
        memory, checkpoint = begun_without_a_copy(rekindle, how=["both"])
        memory.check()
        if way == "kernel":
            line = memory.stays_untold("kernel 3")
            rekindle.let_go("guarded")
            assert line() == ["kernel 3 written"]
        else:
            assert memory.told("hidden 3") == "written"
            memory.cut()
            rekindle.let_go("guarded")
        taken = memory_of(json.loads(checkpoint.end()))
        guarded, still = (0, 32 * MB) if way == "hidden" else (32 * MB, 0)
        assert taken["guarded_bytes"] >= guarded and taken["still_bytes"] >= still, taken
        assert not (taken["guarded_bytes"] and taken["still_bytes"]), taken
        memory.check()
        memory.restored()


@pytest.mark.parametrize("way", ["seen", "constant", "replay"])
def test_a_kernel_that_only_reads_what_has_no_copy_does_not_wait(way):
    """As its code tells, its name, and the code of a kernel in a graph."""
    with Rekindle(**HELD_GUARD) as rekindle:
        memory = Memory(rekindle, 24 * MB, 30 * MB)
        memory.told("capture")
        checkpoint = memory.begin()
        rekindle.reached("guarded")
        assert memory.told(way) == "right True"
        memory.check()
        rekindle.let_go("guarded")
        taken = memory_of(json.loads(checkpoint.end()))
        assert taken["guarded_bytes"] > 16 * MB and taken["still_bytes"] == 0, taken
        memory.restored()
        assert memory.told(way) == "right True"


def test_memory_that_has_no_copy_is_freed_once_it_is_in_the_image():
    with Rekindle(**HELD_GUARD) as rekindle:
        memory, checkpoint = begun_without_a_copy(rekindle)
        line = memory.stays_untold("renew 2")
        rekindle.let_go("guarded")
        assert line() == ["renew 2 written"]
        assert memory_of(json.loads(checkpoint.end()))["guarded_bytes"] > 0
        memory.restored()


@pytest.mark.parametrize("way", ["hidden", "cast"])
def test_what_is_changed_by_a_kernel_that_was_not_known_to_is_seen_and_the_image_taken_anew(way):
    """By an address in memory, and by one that its name calls constant."""
    with Rekindle(**HELD_GUARD) as rekindle:
        memory, checkpoint = begun_without_a_copy(rekindle)
        assert memory.told(f"{way} 2") == "written"
        memory.cut()
        rekindle.let_go("guarded")
        taken = memory_of(json.loads(checkpoint.end()))
        assert taken["guarded_bytes"] == 0 < taken["still_bytes"], taken
        assert "known" in taken["why"], taken
        memory.told("state 3")
        memory.restored()


def test_what_was_written_before_an_image_is_begun_again_is_not_written_once_more():
    with Rekindle(**HELD_GUARD) as rekindle:
        memory, checkpoint = begun_without_a_copy(rekindle)
        assert memory.told("tail 2") == "written"
        memory.cut()
        rekindle.let_go("guarded")
        taken = memory_of(json.loads(checkpoint.end()))
        assert taken["guarded_bytes"] == 0 < taken["still_bytes"], taken
        assert taken["new_bytes"] < taken["bytes"] // 2, taken
        memory.restored()
        rekindle("kill", "restored")
        rekindle("rmi", "image")
        assert chunks(rekindle) == 0 and nothing_is_left(rekindle)


def test_where_it_is_not_wanted_all_that_has_no_copy_is_written_in_the_stop():
    with Rekindle(**{**GPU, "REKINDLE_TUNING": "gpu.shadow=check,gpu.guard=off"}) as rekindle:
        memory = Memory(rekindle, 24 * MB, 30 * MB)
        taken = memory_of(json.loads(memory.begin().end()))
        assert taken["guarded_bytes"] == 0 < taken["still_bytes"], taken
        memory.restored()


@pytest.mark.parametrize("who", ["program", "daemon", "command"])
def test_whoever_is_killed_while_requests_wait_for_an_image_leaves_none_and_the_program_goes_on(who):
    with Rekindle(**HELD_GUARD) as rekindle:
        memory, checkpoint = begun_without_a_copy(rekindle)
        line = memory.stays_untold("state 2")
        if who == "program":
            os.kill(rekindle.sandbox("memory")["pid"], signal.SIGKILL)
            rekindle.wait_end("memory")
        elif who == "daemon":
            kill_daemon(rekindle)
        else:
            checkpoint.process.kill()
        rekindle.let_go("guarded")
        with pytest.raises(CommandError):
            checkpoint.end()
        if who != "program":
            assert line() == ["state 2 written"]
            memory.check()
        rekindle.wait(lambda: nothing_is_left(rekindle), "the draft to go")
        if who != "program":
            json.loads(memory.begin().end())
            memory.restored()


def test_a_worker_that_is_killed_while_requests_wait_leaves_no_image():
    with Rekindle(**{**GPU, "REKINDLE_FAULT": "guarded:kill"}) as rekindle:
        checkpoint = Memory(rekindle, 24 * MB, 30 * MB).begin()
        with pytest.raises(CommandError):
            checkpoint.end()
        assert nothing_is_left(rekindle)


def test_a_program_that_writes_all_the_time_comes_back_as_it_was():
    with Rekindle(**GPU) as rekindle:
        memory = Memory(rekindle)
        memory.told("busy")
        report = json.loads(memory.begin().end())
        assert memory_of(report)["way"] != "shadow", report
        assert memory.told("calm") == "wrong 0"
        memory.check()
        rekindle("kill", "memory")
        memory.commands.write_text(memory.in_image)
        rekindle.restore("image", "restored")
        memory.name = "restored"
        assert memory.told("calm") == "wrong 0"
        memory.check()


def test_buffers_that_are_freed_and_made_anew_meanwhile_are_in_the_image_as_they_are():
    with Rekindle(**HELD_WAVE) as rekindle:
        memory = Memory(rekindle)
        checkpoint = memory.begin()
        rekindle.reached("gpu-ahead-wave")
        memory.told("renew 2")
        memory.cut()
        rekindle.let_go("gpu-ahead-wave")
        assert memory_of(json.loads(checkpoint.end()))["way"] == "ahead"
        memory.restored()


def test_a_program_that_takes_all_memory_meanwhile_gets_it():
    with Rekindle(**HELD_WAVE) as rekindle:
        memory = Memory(rekindle)
        checkpoint = memory.begin()
        rekindle.reached("gpu-ahead-wave")
        memory.tell(f"fill {12 * MB}")
        rekindle.let_go("gpu-ahead-wave")
        rekindle.wait(lambda: f"fill {12 * MB} taken" in rekindle.lines("memory"), "the memory")
        checkpoint.end()
        memory.check()
        rekindle("verify", "image")


def test_it_is_neither_taken_again_nor_put_to_sleep_meanwhile():
    with Rekindle(**HELD_WAVE) as rekindle:
        memory = Memory(rekindle)
        checkpoint = memory.begin()
        rekindle.reached("gpu-ahead-wave")
        for refused in (("checkpoint", "memory", "--to", "other", "--leave-running"), ("sleep", "memory")):
            with pytest.raises(CommandError, match="checkpoint"):
                rekindle(*refused)
        rekindle.let_go("gpu-ahead-wave")
        checkpoint.end()
        memory.check()


def test_a_disk_that_is_full_ends_the_checkpoint_before_the_program_stands_still():
    with Rekindle(**GPU, REKINDLE_FAULT=f"disk:{10 * MB}") as rekindle:
        memory = Memory(rekindle)
        with pytest.raises(CommandError, match="full|space"):
            memory.begin().end()
        memory.check()
        assert nothing_is_left(rekindle)


def test_a_program_that_is_killed_meanwhile_leaves_no_image():
    with Rekindle(**HELD_WAVE) as rekindle:
        checkpoint = Memory(rekindle).begin()
        rekindle.reached("gpu-ahead-wave")
        os.kill(rekindle.sandbox("memory")["pid"], signal.SIGKILL)
        rekindle.wait_end("memory")
        rekindle.let_go("gpu-ahead-wave")
        with pytest.raises(CommandError):
            checkpoint.end()
        assert nothing_is_left(rekindle)


def test_a_worker_that_is_killed_meanwhile_leaves_no_image():
    with Rekindle(**{**GPU, "REKINDLE_FAULT": "gpu-ahead-wave:kill"}) as rekindle:
        checkpoint = Memory(rekindle).begin()
        with pytest.raises(CommandError):
            checkpoint.end()
        assert nothing_is_left(rekindle)


def test_a_daemon_that_is_killed_meanwhile_leaves_the_program_and_no_image():
    with Rekindle(**HELD_WAVE) as rekindle:
        memory = Memory(rekindle)
        checkpoint = memory.begin()
        rekindle.reached("gpu-ahead-wave")
        kill_daemon(rekindle)
        with pytest.raises(CommandError):
            checkpoint.end()
        rekindle.let_go("gpu-ahead-wave")
        memory.told("state 2")
        assert nothing_is_left(rekindle)
        json.loads(memory.begin().end())
        memory.restored()


def test_where_it_is_not_wanted_nothing_is_written_ahead():
    with Rekindle(**{**GPU, "REKINDLE_TUNING": "gpu.shadow=off"}) as rekindle:
        memory = Memory(rekindle)
        report = json.loads(memory.begin().end())
        names = [phase["name"] for phase in report["phases"]]
        assert "memory" not in report and "GPU memory" in names and "write ahead" not in names, report
        memory.check()
