"""A thread that gives its stream more than that takes waits, as it does natively, and nobody else does."""

import os
import signal
import sys
from pathlib import Path

import pytest
from rekindle import Rekindle

THREADS = Path(__file__).parent / "backlog/threads.py"
WAYS = {"context of its own": (), "shared context": ("--share", "us"), "mended": ("--mend",)}
# More than the emulated GPU's streams take, for a second and a half.
LONG = (1_500, 1_000_000)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_a_thread_releases_the_stream_that_another_one_has_filled(options):
    with Rekindle() as rekindle:
        rekindle("run", "-d", "--name", "threads", "--gpu", rekindle.gpu, *options, "--", sys.executable, THREADS, "released")
        assert rekindle.wait_end("threads") == ["released"]


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_a_thread_is_answered_beside_one_that_has_filled_its_stream(options):
    with Rekindle() as rekindle:
        rekindle("run", "-d", "--name", "threads", "--gpu", rekindle.gpu, *options, "--", sys.executable, THREADS, "beside", *LONG)
        begun, ended = rekindle.wait_end("threads")
        # One after every hundred launches of the other, which its ring holds, is what there were if it waited for that.
        assert begun == "begun" and ended.startswith("ok") and int(ended.split()[1]) > 500, ended


@pytest.mark.parametrize("how", ["--leave-running", "--stop"])
def test_an_image_of_a_thread_that_waits_for_its_stream_goes_on(how):
    with Rekindle() as rekindle:
        rekindle.run("threads", sys.executable, THREADS, "one", *LONG)
        rekindle.wait_lines("threads", 1)
        rekindle("checkpoint", "threads", "--to", "image", how)
        if how == "--leave-running":
            assert rekindle.wait_end("threads") == ["begun", "ok 0"]
        rekindle.restore("image", "restored")
        assert rekindle.wait_end("restored") == ["ok 0"]


def test_a_worker_that_is_lost_while_a_thread_waits_for_its_stream_is_mended():
    with Rekindle() as rekindle:
        rekindle("run", "-d", "--name", "threads", "--gpu", rekindle.gpu, "--mend", "--", sys.executable, THREADS, "one", 6_000, 1_000_000)
        rekindle.wait_lines("threads", 1)
        row = lambda: rekindle.sandbox("threads")
        rekindle.wait(lambda: row()["mending"]["on"], "something to go back to")
        os.kill(row()["workers"][0], signal.SIGKILL)
        rekindle.wait(lambda: row()["mending"]["mended"] == 1, "another worker")
        assert rekindle.wait_end("threads") == ["begun", "ok 0"]
