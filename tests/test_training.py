"""A training run that is checkpointed at a random step, killed and restored gives the uninterrupted run's losses bit for bit."""

import random

import pytest
from training.pace import Pace

STEPS = 30
OPTIONS = ["--steps", STEPS, "--rows", 24, "--hidden", 16]
# So many more than a test waits for: it meets programs at work.
AHEAD = 4


@pytest.fixture(scope="module")
def reference():
    from rekindle import Rekindle

    with Rekindle() as rekindle:
        rekindle.run("reference", *Pace(rekindle, STEPS + 1).command(*OPTIONS))
        lines = rekindle.wait_end("reference")
    assert lines[-1] == "done", lines[-5:]
    return lines


@pytest.mark.parametrize("seed", range(8))
def test_losses_continue_bit_for_bit(rekindle, reference, seed):
    step = random.Random(seed).randrange(1, STEPS - 5)
    pace = Pace(rekindle, step + AHEAD)
    rekindle.run("training", *pace.command(*OPTIONS, "--pause", 0.05))
    rekindle.wait_lines("training", step)
    rekindle("checkpoint", "training", "--to", "image", "--stop")
    before = rekindle.lines("training")
    assert not rekindle.sandbox("training")["pid"]
    pace.end()
    rekindle.restore("image", "restored")
    after = rekindle.wait_end("restored")
    assert before + after == reference


def test_a_program_left_running_is_not_disturbed(rekindle, reference):
    pace = Pace(rekindle, 0)
    rekindle.run("training", *pace.command(*OPTIONS, "--pause", 0.05))
    for n in range(3):
        pace.to(5 * n + 3 + AHEAD)
        rekindle.wait_lines("training", 5 * n + 3)
        rekindle("checkpoint", "training", "--to", f"image-{n}", "--leave-running")
    pace.end()
    assert rekindle.wait_end("training") == reference
    for n in range(3):
        rekindle.restore(f"image-{n}", f"restored-{n}")
    for n in range(3):
        after = rekindle.wait_end(f"restored-{n}")
        assert after == reference[len(reference) - len(after) :]
