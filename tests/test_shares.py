"""Programs of one context with shares of its multiprocessors: which of them kernels run on, as the kernels say themselves."""

import json
import sys
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle

PROGRAM = Path(__file__).parent / "shares/program.py"
GPU = "emulated:multiprocessors=132,memory=1G"


@pytest.fixture
def rekindle():
    with Rekindle(GPU) as one:
        yield one


def start(rekindle, name, *options, work=()):
    rekindle("run", "-d", "--share", "us", "--name", name, "--gpu", rekindle.gpu, *options, "--", sys.executable, PROGRAM, *work)


def used(rekindle, name):
    """The multiprocessors of the latest line, if those of all streams and of a graph are the same."""
    lines = rekindle.lines(name)
    each = [set(numbers) for numbers in json.loads(lines[-1]).values()] if lines else [set()]
    return each[0] if all(one == each[0] for one in each) else set()


def has(rekindle, **counts):
    """Waits until kernels of each program run on so many, none of them another's."""

    def reached():
        each = {name: used(rekindle, name) for name in counts}
        sizes = {name: len(numbers) for name, numbers in each.items()}
        return sizes == counts and len(set().union(*each.values())) == sum(counts.values())

    rekindle.wait(reached, f"multiprocessors {counts}")


def workers(rekindle, *names):
    return {pid for name in names for pid in rekindle.sandbox(name)["workers"]}


# The kernels have 64 blocks, so that many multiprocessors are seen at most.
def test_programs_have_their_shares_and_others_the_rest(rekindle):
    start(rekindle, "plain")
    has(rekindle, plain=64)
    start(rekindle, "quarter", "--sm-share", "25%")
    has(rekindle, quarter=32, plain=64)
    start(rekindle, "half", "--sm-share", "50%")
    # 16 units of 8: 4, 8, and 4 that are left, with the 4 multiprocessors that make no unit.
    has(rekindle, quarter=32, half=64, plain=36)
    assert len(workers(rekindle, "plain", "quarter", "half")) == 1
    (stats,) = rekindle.json("stats", "--no-stream", "half")["sandboxes"]
    assert stats["sm_share"] == 50

    with pytest.raises(CommandError, match=r'"half" has 50 %, "quarter" has 25 %'):
        start(rekindle, "more", "--sm-share", "30%")
    with pytest.raises(CommandError, match="without a share"):
        rekindle("limits", "quarter", "--sm-share", "50%")
    has(rekindle, quarter=32, half=64, plain=36)

    assert rekindle.json("limits", "half", "--sm-share", "12%")["sm_share"] == 12
    has(rekindle, quarter=32, half=8, plain=64)
    rekindle("kill", "half")
    rekindle("limits", "quarter", "--sm-share", "none")
    for name in ("plain", "quarter"):
        rekindle.wait(lambda name=name: used(rekindle, name) == set(range(64)), f"{name} on the whole GPU")


def test_an_image_keeps_the_share(rekindle):
    start(rekindle, "plain")
    start(rekindle, "part", "--sm-share", "25%")
    has(rekindle, part=32)

    def taken():
        """A checkpoint that meets a capture is refused."""
        rekindle("checkpoint", "part", "--to", "part", "--stop", check=False)
        return rekindle.json("images")["images"]

    rekindle.wait(taken, "a moment without a capture")
    has(rekindle, plain=64)
    rekindle("limits", "plain", "--sm-share", "75%")
    rekindle("restore", "-d", "part", "--share", "us", "--name", "again", "--gpu", GPU)
    rekindle("limits", "plain", "--sm-share", "12%")
    has(rekindle, plain=8)
    rekindle("limits", "again", "--sm-share", "6%")
    has(rekindle, again=8, plain=8)
    rekindle("kill", "again")
    with pytest.raises(CommandError, match="--share TENANT"):
        rekindle("restore", "-d", "part", "--sm-share", "25%", "--gpu", GPU)


def test_a_gpu_that_cannot_be_divided_has_no_shares_and_all_else():
    with Rekindle(f"{GPU},green=off") as rekindle:
        run = ("run", "-d", "--share", "us", "--gpu", rekindle.gpu)
        command = ("--", sys.executable, PROGRAM)
        rekindle(*run, "--name", "plain", *command)
        has(rekindle, plain=64)
        for asks in (
            lambda: rekindle(*run, "--name", "part", "--sm-share", "25%", *command),
            lambda: rekindle("limits", "plain", "--sm-share", "25%"),
        ):
            with pytest.raises(CommandError, match="the multiprocessors of this GPU cannot be divided") as error:
                asks()
            assert "\n" not in error.value.message
        assert [row["name"] for row in rekindle.sandboxes() if row["pid"]] == ["plain"]
        assert rekindle.sandbox("plain")["limits"].get("sm_share") is None
        has(rekindle, plain=64)


def test_shares_that_change_all_the_time_change_no_results(rekindle):
    for name in ("a", "b"):
        start(rekindle, name, "--sm-share", "25%")
        rekindle.wait_lines(name, 1)
    for number in range(20):
        rekindle("limits", "ab"[number % 2], "--sm-share", f"{6 + 7 * (number % 5)}%")
    rekindle("limits", "a", "--sm-share", "25%")
    rekindle("limits", "b", "--sm-share", "12%")
    has(rekindle, a=32, b=8)


def test_green_contexts_of_a_program_are_refused_where_its_context_is_shared(rekindle):
    program = Path(__file__).parent / "features/green_contexts.py"
    rekindle("run", "-d", "--share", "us", "--name", "green", "--gpu", GPU, "--", sys.executable, program, "never")
    rekindle.wait(lambda: not rekindle.sandbox("green")["pid"], "its end")
    said = rekindle("logs", "green")
    assert "cuDeviceGetDevResource returned CUDA_ERROR_NOT_SUPPORTED: the multiprocessors cannot be divided" in said


def test_work_that_never_ends_goes_with_the_last_program_of_its_context(rekindle, tmp_path):
    (tmp_path / "work").touch()
    start(rekindle, "endless", work=[tmp_path / "work"])
    assert rekindle.wait_lines("endless", 1)
    (worker,) = rekindle.sandbox("endless")["workers"]
    rekindle("kill", "endless")
    rekindle.wait(lambda: not Path(f"/proc/{worker}").exists(), "the end of its context's process")


def test_those_with_work_have_the_multiprocessors_by_weight(tmp_path):
    # 16 units of 4, all of which the kernels' 64 blocks show.
    with Rekindle("emulated:multiprocessors=64,memory=1G") as rekindle:
        work = {name: tmp_path / name for name in ("light", "heavy")}
        for (name, file), weight in zip(work.items(), (10, 30), strict=True):
            file.touch()
            start(rekindle, name, "--sm-weight", weight, work=[file])
        has(rekindle, light=16, heavy=48)
        now = lambda name: rekindle.json("stats", "--no-stream", name)["sandboxes"][0]
        assert (now("heavy")["sm_weight"], now("heavy")["multiprocessors"]) == (30, 48)

        work["heavy"].unlink()
        has(rekindle, light=64)
        assert [now(name)["multiprocessors"] for name in work] == [64, 0]
        work["heavy"].touch()
        has(rekindle, light=16, heavy=48)

        # What is said changes at once too, and what is fixed stays with who rests.
        assert rekindle.json("limits", "heavy", "--sm-most", "50%")["sm_most"] == 50
        has(rekindle, light=32, heavy=32)
        work["light"].unlink()
        has(rekindle, heavy=32)
        work["light"].touch()
        rekindle("limits", "light", "--sm-share", "75%")
        has(rekindle, light=48, heavy=16)
        work["light"].unlink()
        has(rekindle, heavy=32)
        rekindle("limits", "light", "--sm-weight", "none")
        has(rekindle, heavy=16)
        rekindle("limits", "heavy", "--sm-most", "none", "--sm-weight", "none")
        rekindle("limits", "light", "--sm-share", "none")
        has(rekindle, heavy=64)
        with pytest.raises(CommandError, match="expected a most that is not below that"):
            rekindle("limits", "heavy", "--sm-share", "50%", "--sm-most", "25%")
