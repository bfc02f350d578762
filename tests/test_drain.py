"""What happens to programs that go on while the copy of their GPU memory is written: to the image, to them, and to who else asks."""

import json
import os
import signal

import pytest
from interleavings import holders, machine
from rekindle import CommandError, Rekindle
from test_bad_input import refused
from test_cut import HELD, Steps, images, taken, told
from test_precopy import left_over
from test_room import Memory, chunks


def said(command):
    """The one sentence with which it fails."""
    with pytest.raises(CommandError) as error:
        command.end()
    message = error.value.message
    assert error.value.code == 1 and "\n" not in message and message.startswith("rekindle: "), message
    return message


def test_a_worker_that_is_killed_meanwhile_leaves_the_images_before():
    with Rekindle(**HELD) as rekindle:
        rekindle.let_go("drain-begun")
        steps = Steps(rekindle)
        steps.take(2)
        rekindle("checkpoint", "steps", "--to", "before", "--leave-running")
        steps.take(1)
        had = chunks(rekindle)
        rekindle.hold_again("drain-begun")
        checkpoint = taken(rekindle)
        (worker,) = rekindle.sandbox("steps")["workers"]
        os.kill(worker, signal.SIGKILL)
        assert "GPU worker" in said(checkpoint)
        rekindle.let_go("drain-begun")
        # One that ends before its worker's end was seen has ended by itself.
        rekindle.wait(lambda: "worker" in (rekindle.sandbox("steps")["problem"] or ""), "the worker's end")
        steps.set(9)
        lines = rekindle.wait_end("steps")
        assert any("CUDA_ERROR_DEVICE_UNAVAILABLE" in line for line in lines), lines
        assert sum(line.startswith("rekindle: ") for line in lines) == 1, lines
        row = rekindle.sandbox("steps")
        assert row["exit_code"] == 1, row
        assert images(rekindle) == ["before"] and not left_over(rekindle) and chunks(rekindle) == had
        steps.set(4)
        rekindle("verify", "before")
        rekindle.restore("before", "restored")
        assert rekindle.wait_lines("restored", 2) == told(3, 4)


def test_a_disk_that_is_full_by_then_ends_the_checkpoint_and_not_the_program(disk):
    with Rekindle(**HELD, state=disk.path) as rekindle:
        memory = Memory(rekindle, 8 << 20, 4 << 20)
        checkpoint = memory.begin()
        rekindle.reached("drain-begun")
        # So that it is the GPU half that has no room.
        rekindle.wait(lambda: not list(disk.path.glob("dumps/*/*.img")), "the CPU half to be in the draft")
        disk.fill(left=2 << 20)
        rekindle.let_go("drain-begun")
        message = said(checkpoint)
        assert "full" in message or "space" in message, message
        memory.told("state 2")
        memory.check()
        assert not images(rekindle) and not left_over(rekindle) and not chunks(rekindle)
        disk.empty()
        memory.begin().end()
        memory.restored()


def test_a_criu_that_is_killed_before_it_leaves_no_copy_on_the_gpu():
    with Rekindle(REKINDLE_FAULT="pinned-saved:hang", REKINDLE_EMULATED="memory=64M") as rekindle:
        steps = Steps(rekindle, 30 << 20)
        steps.take(2)
        checkpoint = rekindle.begin("checkpoint", "steps", "--to", "image", "--leave-running")
        rekindle.reached("pinned-saved")
        (criu,) = (pid for pid, words in machine.processes_of(rekindle).items() if holders.is_meant("criu", words))
        os.kill(criu, signal.SIGKILL)
        rekindle.let_go("pinned-saved")
        assert "the program goes on" in said(checkpoint)
        steps.take(1)
        assert not images(rekindle) and not left_over(rekindle) and not chunks(rekindle)
        rekindle("checkpoint", "steps", "--to", "image", "--leave-running")
        rekindle("verify", "image")
        steps.set("fill")
        assert rekindle.wait_lines("steps", steps.count + 2)[-1] == "filled"


def test_it_is_neither_taken_again_nor_put_to_sleep_meanwhile():
    with Rekindle(**HELD) as rekindle:
        steps = Steps(rekindle)
        steps.take(2)
        checkpoint = taken(rekindle)
        for asked in (
            ("checkpoint", "steps", "--to", "other", "--leave-running"),
            ("checkpoint", "steps", "--to", "other", "--stop"),
            ("sleep", "steps"),
        ):
            assert "is checkpointing just now" in refused(rekindle, *asked)
        steps.take(1)
        rekindle.let_go("drain-begun")
        checkpoint.end()
        assert images(rekindle) == ["image"]
        rekindle("sleep", "steps")
        steps.take(1)


def test_a_program_that_ends_by_itself_meanwhile_leaves_no_image():
    with Rekindle(**HELD) as rekindle:
        steps = Steps(rekindle)
        steps.take(2)
        checkpoint = taken(rekindle)
        steps.set("end")
        assert rekindle.wait_end("steps") == ["ready", *told(1, 2)]
        row = rekindle.sandbox("steps")
        assert (row["state"], row["exit_code"], row["problem"]) == ("exited", 0, None)
        rekindle.let_go("drain-begun")
        assert 'the program of "steps" ended while it was to be checkpointed' in said(checkpoint)
        assert not images(rekindle) and not left_over(rekindle)


@pytest.mark.parametrize("order", [["free", "code 2"], ["code 2", "renew 3", "weights 2"]], ids=" ".join)
def test_what_is_freed_and_loaded_meanwhile_changes_nothing_of_the_image(order):
    with Rekindle(**HELD) as rekindle:
        memory = Memory(rekindle, 8 << 20, 4 << 20)
        assert memory.told("code 1") == "1"
        memory.told("state 2")
        checkpoint = memory.begin()
        rekindle.reached("drain-begun")
        for command in order:
            memory.told(command)
        assert memory.told("codes") == "1 2"
        rekindle.let_go("drain-begun")
        assert "drain" in [phase["name"] for phase in json.loads(checkpoint.end())["phases"]]
        memory.check()
        memory.restored()
        assert memory.told("codes") == "1"
        assert memory.told("code 3") == "1 3"
