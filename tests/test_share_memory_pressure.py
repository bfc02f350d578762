"""What lies in the pool of a shared context goes first when anybody lacks memory of the GPU: another worker, or a process that the
daemon does not know."""

import contextlib
import fcntl
import sys
import time

import pytest
from rekindle import Rekindle
from test_services import SERVER, image
from test_share_memory import MB, Program

# What the GPU has, in MB, what each context takes of it, and the most that a program has mapped after it has freed it.
MEMORY, CONTEXT, POOLED = 256, 8, 32


@pytest.fixture
def gpu(tmp_path):
    """Where processes note what they have of the GPU."""
    return tmp_path / "gpu"


def began(gpu, *faults, **environment):
    environment["REKINDLE_EMULATED"] = f"memory={MEMORY}M,context={CONTEXT}M,common={gpu}"
    return Rekindle(REKINDLE_FAULT=",".join(("freed-given-back", *faults)), REKINDLE_POOL_WINDOW="0", **environment)


@pytest.fixture
def restless(gpu):
    """What its programs have freed is not given back for their rest."""
    with began(gpu, REKINDLE_POOL="0") as instance:
        yield instance


def pooled(rekindle, way="freed", name="pooled", megabytes=POOLED, others=0):
    """A program that has freed so much, which lies in its context's pool beside what others have freed."""
    one = Program(rekindle, name)
    assert one(f"alloc a {megabytes * MB}") == one("launch a 1") == one(f"{way} a") == "ok"
    has(one, others + megabytes)
    return one


def has(one, megabytes):
    one.rekindle.wait(lambda: one.stats()["pool_bytes"] == megabytes * MB, f"{megabytes} MB in the pool", 20)


@contextlib.contextmanager
def outsider(gpu, megabytes):
    """A process with so much of the GPU's memory of which the daemon knows nothing."""
    with (gpu / "0-1-0").open("w") as place:
        fcntl.flock(place, fcntl.LOCK_EX)
        place.write(f"{megabytes * MB:020}")
        place.flush()
        yield


@pytest.mark.parametrize("way", ["free", "freed"])
def test_a_program_with_a_context_of_its_own_gets_what_lies_in_the_pool(restless, way):
    one, alone = pooled(restless, way), Program(restless, "alone", options=(), share=())
    # It counts as free for all.
    assert int(alone("info before")) >= 222
    assert alone(f"alloc b {216 * MB}") == alone("launch b 2") == "ok"
    has(one, 0)
    assert (alone("word b"), alone("free b")) == ("2 True", "ok")
    assert one(f"alloc c {16 * MB}") == one("launch c 3") == "ok"
    assert one("word c") == "3 True"


def test_another_tenant_s_program_gets_it_at_its_first_use(restless):
    one, other = pooled(restless), Program(restless, "other", share=("--share", "them"))
    assert restless.sandbox("pooled")["workers"] != restless.sandbox("other")["workers"]
    assert other(f"alloc b {216 * MB}") == "ok"
    assert one.stats()["pool_bytes"] == POOLED * MB
    assert other("launch b 2") == "ok"
    has(one, 0)
    assert other("word b") == "2 True"


def test_a_restore_takes_it_before_waiting_workers_go(gpu):
    with began(gpu, REKINDLE_POOL="2") as rekindle:
        image(rekindle, "large", sys.executable, SERVER, "large", 8000, 180)
        one = pooled(rekindle)
        pooled(rekindle, name="second", megabytes=24, others=POOLED)
        waits = lambda: {worker["pid"] for worker in rekindle.json("ps")["pool"] if worker["ready"]}  # noqa: E731
        rekindle.wait(lambda: len(waits()) == 2, "two that wait")
        waiting = waits()
        rekindle.restore("large", "large")
        (taken,) = rekindle.sandbox("large")["workers"]
        has(one, 0)
        assert taken in waiting
        assert waiting - {taken} <= {worker["pid"] for worker in rekindle.json("ps")["pool"]}


def test_a_process_that_the_daemon_does_not_know_is_left_a_margin(restless, gpu):
    one = pooled(restless)
    # What the pool has counts as free.
    free = int(one("info before")) - POOLED
    # More than half of the margin of 16 MB is free: nothing is unmapped for it.
    with outsider(gpu, free - 12):
        time.sleep(0.5)
        assert one.stats()["pool_bytes"] == POOLED * MB
    with outsider(gpu, free - 4):
        has(one, 0)
    assert one(f"alloc c {16 * MB}") == one("launch c 3") == "ok"
    assert one("word c") == "3 True"
