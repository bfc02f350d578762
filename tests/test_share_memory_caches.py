"""Frameworks' allocators give back what they keep of memory that comes at the first use, when their program rests."""

import time

import pytest
from frameworks import allocator
from test_share_memory import GPU, LAZY, MB, Program

# So long a program asks for nothing, and then it rests: ten times as long as it takes.
RESTS = 0.5


def started(rekindle, tmp_path, framework="torch", asked="frees", options=LAZY, gpu=None):
    one = Program(rekindle, options=options, gpu=gpu)
    assert one(f"cache {allocator(framework, tmp_path)} {asked}") == "ok"
    return one


def keeps(one, megabytes=16):
    """Uses memory that its framework keeps from then on."""
    return one(f"keep {megabytes * MB}") == "ok"


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_what_a_framework_keeps_is_given_back_when_the_program_rests(rekindle, tmp_path, framework):
    one = started(rekindle, tmp_path, framework)
    assert one(f"alloc used {8 * MB}") == one("launch used 7") == "ok"
    for _ in range(2):
        assert keeps(one)
        one.has(0, 8)
    assert one("word used") == "7 True"


def test_it_is_asked_once_after_each_time_that_it_has_worked(rekindle, tmp_path):
    one = started(rekindle, tmp_path)
    for emptied in ("0", "0 0"):
        assert keeps(one)
        rekindle.wait(lambda: one("emptied") == emptied, "its cache to be emptied", 20)
        time.sleep(RESTS)
        assert one(f"alloc b {MB}") == one("free b") == "ok"
        time.sleep(RESTS)
        assert one("emptied") == emptied


def test_it_is_asked_on_each_gpu_that_the_program_uses(rekindle, tmp_path):
    one = started(rekindle, tmp_path, gpu=f"{GPU},devices=2")
    assert one("second") == "ok" and keeps(one)
    one.has(0, 0)
    rekindle.wait(lambda: one("emptied") == "0 1", "its caches to be emptied", 20)


def test_a_framework_that_fails_has_what_it_had_and_the_program_goes_on(rekindle, tmp_path):
    one = started(rekindle, tmp_path, asked="fails")
    assert keeps(one)
    rekindle.wait(lambda: one("emptied") == "0", "its cache to be emptied", 20)
    one.has(0, 16)
    assert one(f"alloc b {8 * MB}") == one("launch b 2") == "ok"
    assert one("word b") == "2 True"


def test_a_restored_program_gives_back_as_before(rekindle, tmp_path):
    one = started(rekindle, tmp_path)
    assert one(f"alloc used {8 * MB}") == one("launch used 7") == "ok"
    rekindle("checkpoint", "one", "--to", "image", "--stop")
    again = one.restored("image", "again", "--share", "us")
    assert keeps(again)
    again.has(0, 8)
    assert again("word used") == "7 True"


def test_one_that_has_memory_at_once_keeps_it(rekindle, tmp_path):
    one = started(rekindle, tmp_path, options=())
    assert keeps(one)
    time.sleep(RESTS)
    assert one("emptied") == ""
