"""Programs that copy at once in several contexts of one GPU, whose link of 256 MB/s all workers have."""

import os
import signal
import sys
import time

import pytest
from test_link import COPIES, GPU, LINK, begin, used, worker

__all__ = ["begin"]


class OneGpu:
    """Programs that copy 4 MB again and again, four such copies always under way, in the context of a tenant or one of their own."""

    def __init__(self, rekindle):
        self.rekindle, self.gpu = rekindle, f"{GPU},common={rekindle.root / 'common'}"

    def start(self, name, tenant=None, weight=10):
        options = ("--share", tenant, "--link-weight", weight) if tenant else ()
        self.rekindle("run", "-d", *options, "--name", name, "--gpu", self.gpu, "--", sys.executable, COPIES, "steady")
        self.rekindle.wait_lines(name, 1)

    def rounds(self, name):
        return len(self.rekindle.lines(name))

    def more(self, name, rounds):
        """Waits until the program has made so many more rounds of 32 MB, and says how long that took."""
        began = time.monotonic()
        before = self.rounds(name)
        assert len(self.rekindle.wait_lines(name, before + rounds)) >= before + rounds, name
        return time.monotonic() - began

    def beside(self, name, others):
        """How many times as much as `name` each of the others copies."""
        for one in (name, *others):
            # What it had before all were there.
            self.more(one, 2)
        before = [self.rounds(other) for other in others]
        self.more(name, 6)
        return [(self.rounds(other) - count) / 6 for other, count in zip(others, before, strict=True)]


@pytest.fixture
def gpu(begin):
    return OneGpu(begin(LINK))


# By the default window all that a program has asked for is under way, and nothing of it waits in its own context.
@pytest.mark.parametrize("link", [LINK, "piece=4M,window=16M"], ids=["waiting", "under-way"])
def test_programs_of_two_contexts_have_bytes_by_their_weights_which_change_while_they_run(begin, link):
    gpu = OneGpu(begin(link))
    gpu.start("light", "us")
    gpu.start("heavy", "them", 30)
    (times,) = gpu.beside("light", ["heavy"])
    assert 2 < times < 4.5
    assert worker(gpu.rekindle, "light") != worker(gpu.rekindle, "heavy")
    assert used(gpu.rekindle, "light")["link_waited_us"] > 0
    gpu.rekindle("limits", "heavy", "--link-weight", 10)
    (times,) = gpu.beside("light", ["heavy"])
    assert 0.6 < times < 1.7


def test_a_program_has_as_much_beside_four_of_another_context_as_each_of_them(gpu):
    four = [f"one-{number}" for number in range(4)]
    for name in four:
        gpu.start(name, "us")
    gpu.start("alone", "them")
    times = gpu.beside("alone", four)
    assert 0.6 < sum(times) / 4 < 1.7, times


@pytest.mark.parametrize(("weight", "least", "most"), [(10, 0.6, 1.7), (2, 2.5, 9)])
def test_a_shared_context_has_no_more_than_by_weight_beside_a_program_with_a_context_of_its_own(gpu, weight, least, most):
    gpu.start("own")
    gpu.start("shared", "us", weight)
    (times,) = gpu.beside("shared", ["own"])
    assert least < times < most


def test_a_worker_that_is_stopped_or_killed_while_it_waits_holds_up_nobody(gpu):
    gpu.start("first", "us")
    gpu.start("second", "them")
    gpu.more("second", 2)
    stopped = worker(gpu.rekindle, "second")
    os.kill(stopped, signal.SIGSTOP)
    try:
        # What was on its way may still be told.
        time.sleep(0.3)
        before = gpu.rounds("second")
        beside = gpu.more("first", 16)
        assert gpu.rounds("second") == before
    finally:
        os.kill(stopped, signal.SIGCONT)
    gpu.more("second", 2)
    os.kill(stopped, signal.SIGKILL)
    alone = gpu.more("first", 16)
    # Alone these take 2 s, and by turns with the other one 4 s.
    assert beside < 1.5 * alone + 0.5 and alone < 1.5 * beside + 0.5, (beside, alone)
