"""Memory of programs in a shared context that comes when it is first used, and goes when it is freed."""

import os
import signal
import sys
from pathlib import Path

import pytest
from rekindle import CommandError
from test_features import ALONE, FEATURES

PROGRAM = Path(__file__).parent / "share_memory/memory.py"
MB = 1 << 20
LAZY = ("--share-memory", "lazy")
GPU = "emulated:memory=256M"
# What a program of this kind has of its own: a table, and what its stream and its module need.
LITTLE = 8 * MB


class Program:
    """One program; what it is told, and what it says."""

    def __init__(self, rekindle, name="one", options=LAZY, gpu=None, share=("--share", "us")):
        self.rekindle, self.name, self.gpu = rekindle, name, gpu or rekindle.gpu
        self.commands, self.told = rekindle.root / f"{name}.commands", 0
        rekindle("run", "-d", *share, "--name", name, "--gpu", self.gpu, *options, "--", sys.executable, PROGRAM, self.commands)
        assert rekindle.wait_lines(name, 1) == ["ready"], rekindle.lines(name)

    def restored(self, image, name, *options):
        """Another one, from an image of this one."""
        self.rekindle("restore", "-d", image, "--name", name, "--gpu", self.gpu, *options)
        other = object.__new__(Program)
        vars(other).update(vars(self), name=name)
        return other

    def __call__(self, line):
        """Does a line; what came of it. Programs that were restored from one image read the same lines."""
        said = lambda: [found for found in self.rekindle.lines(self.name) if found.startswith(f"{line}: ")]
        before = len(said())
        with self.commands.open("a") as commands:
            commands.write(f"{line}\n")
        self.rekindle.wait(lambda: len(said()) > before or not self.rekindle.sandbox(self.name)["pid"], line)
        return said()[-1].removeprefix(f"{line}: ")

    def stats(self):
        (stats,) = self.rekindle.json("stats", "--no-stream", self.name)["sandboxes"]
        return stats

    def counts(self):
        """First uses that found memory in the pool, and those for which it was made."""
        stats = self.stats()
        return stats["pool_hits"], stats["pool_misses"]

    def has(self, unbacked, backed):
        """Waits until so many MB have no memory, and about so many have."""

        def is_so():
            stats = self.stats()
            return stats["unbacked_bytes"] == unbacked * MB and 0 <= stats["device_bytes"] - backed * MB < LITTLE

        try:
            self.rekindle.wait(is_so, "memory", 20)
        except TimeoutError:
            pytest.fail(f"expected {unbacked} MB unbacked and {backed} MB backed, found {self.stats()}")


def worker(rekindle, name):
    (pid,) = rekindle.sandbox(name)["workers"]
    return pid


def logs(rekindle):
    """What processes with shared contexts have logged."""
    return "".join(log.read_text() for log in (rekindle.state / "logs").glob("contexts-*.log"))


USES = ("set", "launch", "up", "graph", "table")


def test_addresses_come_at_once_and_memory_at_the_first_use(rekindle):
    one = Program(rekindle)
    for name in (*USES, "to", "never"):
        assert one(f"alloc {name} {16 * MB}") == "ok"
    free = int(one("info before"))
    one.has(7 * 16, 0)
    for number, name in enumerate(USES, start=1):
        assert one(f"{name} {name} {number}") == "ok"
        one.has((7 - number) * 16, number * 16)
    assert one("copy to launch") == "ok"
    one.has(16, 96)
    found = [one(f"word {name}") for name in (*USES, "to")]
    assert found == [f"{number} True" for number in (1, 2, 3, 4, 5, 2)]
    # What it allocated it cannot allocate once more, whether it has memory or not.
    assert abs(int(one("info after")) - free) <= LITTLE >> 20


def test_reading_memory_backs_it_too_and_small_allocations_have_it_together(rekindle):
    one = Program(rekindle)
    before = one.stats()["device_bytes"]
    for number in range(64):
        assert one(f"alloc small-{number} 1000") == "ok"
    assert one.stats()["device_bytes"] - before < LITTLE
    assert one("set small-63 7") == one("set small-0 6") == "ok"
    assert (one("word small-63"), one("word small-0")) == ("7 True", "6 True")
    assert one(f"alloc read {16 * MB}") == "ok"
    assert one("word read").endswith("True")
    one.has(0, 16)


def test_eager_is_as_without(rekindle):
    eager, plain = Program(rekindle, "eager", ("--share-memory", "eager")), Program(rekindle, "plain", ())
    for one in (eager, plain):
        assert one(f"alloc a {16 * MB}") == "ok"
        one.has(0, 16)


def test_what_is_freed_is_given_back_when_the_program_rests(rekindle):
    one = Program(rekindle)
    for way in ("free", "freed"):
        for name in "abc":
            assert one(f"alloc {way}-{name} {16 * MB}") == "ok"
        for name in "ab":
            assert one(f"launch {way}-{name} 1") == "ok"
        one.has(16, 32)
        for name in "bc":
            assert one(f"{way} {way}-{name}") == "ok"
        one.has(0, 16)
        assert one(f"word {way}-a") == "1 True"
        assert one(f"free {way}-a") == "ok"
        one.has(0, 0)


def test_images_keep_what_has_no_memory(rekindle):
    one = Program(rekindle)
    for name in "abcd":
        assert one(f"alloc {name} {16 * MB}") == "ok"
    assert one("launch a 1") == one("launch b 2") == "ok"
    rekindle("checkpoint", "one", "--to", "going", "--leave-running")
    assert one("launch c 3") == "ok"
    one.has(16, 48)
    rekindle("checkpoint", "one", "--to", "image", "--stop")
    for image in ("going", "image"):
        rekindle("verify", image)
    parts = {
        image: sum(part["bytes"] for part in rekindle.json("inspect", image)["parts"] if part["kind"] == "gpu-buffer") for image in ("going", "image")
    }
    assert 32 * MB <= parts["going"] < 32 * MB + LITTLE and 48 * MB <= parts["image"] < 48 * MB + LITTLE
    again = one.restored("image", "again", "--share", "us")
    again.has(16, 48)
    assert [again(f"word {name}") for name in "abc"] == ["1 True", "2 True", "3 True"]
    again.has(16, 48)
    assert (again("launch d 4"), again("word d")) == ("ok", "4 True")
    again.has(0, 64)
    # An image of what was restored, elsewhere: in a context of its own, all has memory.
    rekindle("checkpoint", "again", "--to", "later", "--stop")
    alone = one.restored("later", "alone")
    assert alone("word a") == "1 True" and alone.stats()["unbacked_bytes"] is None


def test_an_image_restored_eagerly_has_all_its_memory(rekindle):
    one = Program(rekindle)
    assert one(f"alloc a {16 * MB}") == one(f"alloc b {16 * MB}") == one("launch a 1") == "ok"
    rekindle("checkpoint", "one", "--to", "image", "--stop")
    eager = one.restored("image", "eager", "--share", "us", "--share-memory", "eager")
    eager.has(0, 32)
    assert (eager("word a"), eager("launch b 2"), eager("word b")) == ("1 True", "ok", "2 True")
    alone = one.restored("image", "alone")
    rekindle.wait(lambda: alone.stats()["device_bytes"] >= 32 * MB, "all memory")


def test_memory_that_is_not_there_at_the_first_use_fails_that_operation_alone(rekindle):
    one, other = Program(rekindle, "one", gpu=GPU), Program(rekindle, "other", gpu=GPU)
    assert worker(rekindle, "one") == worker(rekindle, "other")
    for name in "ab":
        assert one(f"alloc {name} {112 * MB}") == "ok"
        assert other(f"alloc {name} {112 * MB}") == "ok"
    # More than the GPU has is refused at once.
    assert "OUT_OF_MEMORY" in one(f"alloc c {112 * MB}")
    assert one("launch a 1") == other("launch a 2") == "ok"
    for use in ("launch b 1", "set b 1", "up b 1", "word b", "graph b 1", "table b 1"):
        assert "OUT_OF_MEMORY" in one(use), use
    one.has(112, 112)
    # Nobody else is told, and whoever was goes on.
    assert (other("word a"), one("word a")) == ("2 True", "1 True")
    assert "needs GPU memory that is not there" in logs(rekindle)
    # There is some when another one gives it back.
    assert other("free a") == "ok"
    other.has(112, 0)
    assert (one("launch b 3"), one("word b"), one("word a")) == ("ok", "3 True", "1 True")


def test_several_programs_have_the_memory_that_they_use(rekindle):
    # Each has allocated nearly all of the GPU.
    all_ = [Program(rekindle, f"client-{number}", gpu=GPU) for number in range(4)]
    assert len({worker(rekindle, one.name) for one in all_}) == 1
    for number, one in enumerate(all_):
        for name in ("model", "cache"):
            assert one(f"alloc {name} {(40 if name == 'model' else 160) * MB}") == "ok"
        assert one(f"launch model {number}") == "ok"
    for number, one in enumerate(all_):
        one.has(160, 40)
        assert one("word model") == f"{number} True"
    rekindle("kill", "client-1")
    assert all_[0]("free model") == "ok" and all_[2]("word model") == "2 True"


def test_an_address_that_a_kernel_computes_from_anothers_is_a_fault(rekindle):
    one, rests = Program(rekindle, "one"), Program(rekindle, "rests")
    assert rests(f"alloc a {16 * MB}") == rests(f"alloc b {16 * MB}") == rests("launch a 1") == "ok"
    before = worker(rekindle, "rests")
    assert one(f"alloc a {16 * MB}") == one(f"alloc b {16 * MB}") == one("launch a 1") == "ok"
    assert "ILLEGAL_ADDRESS" in one("computed b a 2")
    assert "--share-memory eager" in logs(rekindle)
    # Who was at rest goes on elsewhere, with what has memory and what has none.
    rekindle.wait(lambda: rekindle.sandbox("rests")["workers"] not in ([], [before]), "the other one to go on elsewhere")
    rests.has(16, 16)
    assert (rests("word a"), rests("launch b 2"), rests("word b")) == ("1 True", "ok", "2 True")


def test_with_mend_a_program_does_not_see_such_a_fault(rekindle):
    one = Program(rekindle, "one", (*LAZY, "--mend"))
    assert one(f"alloc a {16 * MB}") == one(f"alloc b {16 * MB}") == one("launch a 1") == "ok"
    rekindle.wait(lambda: rekindle.sandbox("one")["mending"]["on"], "mending to be on")
    before = worker(rekindle, "one")
    assert one("computed b a 2") == "ok"
    assert (one("word a"), one("word b")) == ("1 True", "2 True")
    row = rekindle.sandbox("one")
    assert row["problem"] is None and row["mending"]["mended"] == 1 and row["workers"] != [before]
    # From now on memory is there at once.
    one.has(0, 32)
    assert (one(f"alloc c {16 * MB}"), one("computed c a 3"), one("word c")) == ("ok", "ok", "3 True")


def test_with_mend_a_program_at_work_does_not_see_the_end_of_its_process(rekindle):
    one, other = Program(rekindle, "one", ("--mend",)), Program(rekindle, "other", (*LAZY, "--mend"))
    for program in (one, other):
        assert program(f"alloc a {16 * MB}") == program("launch a 1") == "ok"
        rekindle.wait(lambda program=program: rekindle.sandbox(program.name)["mending"]["on"], "mending to be on")
    before = worker(rekindle, "one")
    os.kill(before, signal.SIGKILL)
    for program in (one, other):
        assert (program("word a"), program("launch a 2"), program("word a")) == ("1 True", "ok", "2 True")
        assert rekindle.sandbox(program.name)["problem"] is None
    assert worker(rekindle, "one") == worker(rekindle, "other") != before


# What kernels print comes to the log of the process whose contexts are shared; green contexts are refused there.
@pytest.mark.parametrize("name", [name for name in ALONE if name not in ("printing", "green_contexts")])
def test_features_with_memory_at_the_first_use(rekindle, name):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--share", "us", *LAZY, "--name", name, "--gpu", rekindle.gpu, "--", sys.executable, FEATURES / f"{name}.py", go)
    assert rekindle.wait_lines(name, 1)[:1] == ["ready"], rekindle.lines(name)
    rekindle("checkpoint", name, "--to", "image", "--leave-running")
    go.touch()
    assert rekindle.wait_end(name) == ["ready", "ok"]
    rekindle("restore", "-d", "image", "--name", "again", "--share", "us", "--gpu", rekindle.gpu)
    assert rekindle.wait_end("again") == ["ok"], rekindle.lines("again")


def test_it_is_for_programs_that_share(rekindle):
    with pytest.raises(CommandError, match="--share TENANT"):
        rekindle("run", "-d", *LAZY, "--gpu", rekindle.gpu, "--", "true")
    with pytest.raises(CommandError, match="eager, lazy"):
        rekindle("run", "-d", "--share", "us", "--share-memory", "late", "--", "true")
