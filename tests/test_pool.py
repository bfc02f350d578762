"""Workers that wait: as many as were taken at once of late, or as programs sleep that a context is kept for; and they go for
who lacks GPU memory."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon
from test_services import SERVER, Web, begun, image

INSTANCES = 8
# Where several processes have the memory together, and what each context takes of it. One more waits where 25 MB are free.
MEMORY, CONTEXT = 200, 20


def new(rekindle):
    """Those that wait and have served nobody."""
    return [worker for worker in rekindle.json("ps")["pool"] if not worker["returned"]]


def ready(rekindle):
    return {worker["pid"] for worker in new(rekindle) if worker["ready"]}


def target(rekindle):
    (target,) = rekindle.json("ps")["pool_targets"]
    return target


def come_to(rekindle, count):
    """The workers that wait, once they are as many."""
    rekindle.wait(lambda: len(ready(rekindle)) == count == len(new(rekindle)), f"{count} workers that wait")
    return ready(rekindle)


def at_once(rekindle, count, name="image"):
    """Restores so many instances of an image, of which none takes a worker before all are there. The workers that they have."""
    names = [f"{name}-{number}" for number in range(count)]
    is_there = lambda: sum(row["state"] == "restoring" for row in rekindle.sandboxes()) == count  # noqa: E731
    with ThreadPoolExecutor(count) as threads:
        restored = [threads.submit(rekindle.restore, name, one) for one in names]
        rekindle.wait(is_there, "all to be there")
        rekindle.let_go("restore-created")
        for one in restored:
            one.result()
    rekindle.hold_again("restore-created")
    return {worker for one in names for worker in rekindle.sandbox(one)["workers"]}


def end_all(rekindle):
    rekindle("kill", *[row["name"] for row in rekindle.json("ps")["sandboxes"]])


@pytest.fixture
def pool():
    with contexts() as instance:
        yield instance


def contexts(**environment):
    return Rekindle(REKINDLE_FAULT="restore-created:hang", **environment)


def test_eight_at_once_find_eight_that_wait_the_second_time(pool):
    image(pool, "image", sys.executable, SERVER, "image")
    (waits,) = come_to(pool, 1)
    first = at_once(pool, INSTANCES)
    assert waits in first and len(first) == INSTANCES
    waiting = come_to(pool, INSTANCES)
    shown = target(pool)
    assert (shown["workers"], shown["least"], shown["recent"], shown["asleep"]) == (INSTANCES, 1, INSTANCES, 0)
    assert not shown["short_of_memory"]
    assert f"{INSTANCES} " in pool("stats", "--no-stream").split("WAITING WORKERS OF")[1]
    end_all(pool)
    # Those of the first time may wait again.
    assert at_once(pool, INSTANCES) <= waiting | first


def test_the_pool_is_no_larger_than_its_limit_and_shrinks_after_its_window():
    with contexts(REKINDLE_POOL_LIMIT="3", REKINDLE_POOL_WINDOW="30") as rekindle:
        image(rekindle, "image", sys.executable, SERVER, "image")
        at_once(rekindle, 5)
        waiting = come_to(rekindle, 3)
        assert (target(rekindle)["workers"], target(rekindle)["recent"]) == (3, 5)
        (left,) = come_to(rekindle, 1)
        assert left in waiting and target(rekindle)["workers"] == 1
        rekindle.wait(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in waiting - {left}), "the end of the others")


def test_without_a_window_no_more_wait_than_always():
    with contexts(REKINDLE_POOL_WINDOW="0", REKINDLE_POOL="2") as rekindle:
        image(rekindle, "image", sys.executable, SERVER, "image")
        at_once(rekindle, 4)
        come_to(rekindle, 2)
        assert (target(rekindle)["workers"], target(rekindle)["recent"]) == (2, 0)


def test_none_is_started_beside_a_restore_for_a_second(pool):
    image(pool, "image", sys.executable, SERVER, "image")
    (waits,) = come_to(pool, 1)
    with ThreadPoolExecutor(1) as threads:
        began = time.monotonic()
        restored = threads.submit(pool.restore, "image", "restored")
        pool.wait(lambda: any(row["state"] == "restoring" for row in pool.sandboxes()), "the restore")
        os.kill(waits, signal.SIGKILL)
        pool.wait(lambda: any(worker["pid"] != waits for worker in new(pool)), "another one")
        assert time.monotonic() - began > 1
        pool.let_go("restore-created")
        restored.result()
    come_to(pool, 1)


def on_one_gpu(tmp_path, **environment):
    """Workers that have their GPU's memory together, as those of a real one."""
    return contexts(REKINDLE_EMULATED=f"memory={MEMORY}M,context={CONTEXT}M,common={tmp_path / 'gpu'}", **environment)


def test_a_restore_that_lacks_memory_has_what_waiting_workers_held(tmp_path):
    with on_one_gpu(tmp_path) as rekindle:
        image(rekindle, "large", sys.executable, SERVER, "large", 8000, 156)
        image(rekindle, "small", sys.executable, SERVER, "small")
        first = at_once(rekindle, 4, "small")
        waiting = come_to(rekindle, 4)
        end_all(rekindle)
        rekindle.let_go("restore-created")
        rekindle.restore("large", "large")
        (worker,) = rekindle.sandbox("large")["workers"]
        assert worker in waiting | first
        # Less than an eighth is free by now, and none waits in place of those that went.
        rekindle.wait(lambda: target(rekindle)["short_of_memory"], "it to be noticed")
        assert rekindle.json("ps")["pool"] == []
        rekindle("kill", "large")
        come_to(rekindle, 4)
        assert not target(rekindle)["short_of_memory"]


def test_more_wait_only_while_much_memory_is_free(tmp_path):
    with on_one_gpu(tmp_path, REKINDLE_POOL_WINDOW="600") as rekindle:
        image(rekindle, "image", sys.executable, SERVER, "image", 8000, 20)
        # Each has 42 MB with its context.
        at_once(rekindle, 4)
        rekindle.wait(lambda: target(rekindle)["short_of_memory"], "it to be noticed")
        assert (target(rekindle)["workers"], len(come_to(rekindle, 1))) == (4, 1)
        end_all(rekindle)
        come_to(rekindle, 4)


def held_at_once(web, count, turn):
    """So many requests that are in the hands of an instance each at the same time."""
    with ThreadPoolExecutor(count) as threads:
        asked = [threads.submit(web.ask, f"/hold?{web.mark(f'{turn}-{number}')}") for number in range(count)]
        for number in range(count):
            web.held(f"{turn}-{number}")
        # A program begins with its request before its GPU half is awake.
        web.come_to(*["running"] * count)
        workers = {worker for row in web.rekindle.json("ps")["sandboxes"] for worker in row["workers"]}
        for number in range(count):
            web.let_go(f"{turn}-{number}")
        assert [one.result()[0] for one in asked] == [200] * count
    return workers


def test_a_context_is_kept_for_each_that_sleeps_until_its_interval_is_over():
    with begun(REKINDLE_POOL_WINDOW="0") as rekindle:
        web = Web(rekindle, "--idle", "10ms", "--stages", "context=1h,gpu=1h", "--concurrency", 1, "--max", 3)
        web.come_to("asleep")
        come_to(rekindle, 1)
        held_at_once(web, 3, "first")
        web.come_to("asleep", "asleep", "asleep")
        waiting = come_to(rekindle, 3)
        assert (target(rekindle)["asleep"], target(rekindle)["recent"]) == (3, 0)
        # Each wakes with one of those.
        assert held_at_once(web, 3, "second") == waiting
        web.come_to("asleep", "asleep", "asleep")
        # One that is killed while it waits is replaced.
        killed = min(come_to(rekindle, 3))
        os.kill(killed, signal.SIGKILL)
        rekindle.wait(lambda: killed not in ready(rekindle), "its end")
        come_to(rekindle, 3)
        # The interval holds for what sleeps already; the next daemon begins it anew.
        rekindle("scale", "web", "--stages", "context=1ms,gpu=1h")
        assert web.shown()["plan"]["context_ms"] == 1
        come_to(rekindle, 1)
        web.come_to("asleep", "asleep", "asleep")
        rekindle("scale", "web", "--stages", "context=1h,gpu=1h")
        come_to(rekindle, 3)
        rekindle("scale", "web", "--stages", "gpu=1h")
        assert "context_ms" not in web.shown()["plan"]
        come_to(rekindle, 1)


def test_the_interval_goes_on_while_it_goes_down_and_after_a_daemon_s_death():
    with begun(REKINDLE_POOL_WINDOW="0") as rekindle:
        web = Web(rekindle, "--idle", "10ms", "--stages", "context=1h,gpu=100ms,host=1h", "--concurrency", 1, "--max", 2)
        held_at_once(web, 2, "first")
        rekindle.wait(lambda: [one["level"] for one in web.shown()["instances"]] == ["host", "host"], "both to be down")
        come_to(rekindle, 2)
        kill_daemon(rekindle)
        rekindle.wait(lambda: web.stages() == ["asleep", "asleep"], "the next daemon")
        come_to(rekindle, 2)
        assert target(rekindle)["asleep"] == 2


def test_a_kept_context_goes_first_when_memory_is_short_and_what_sleeps_stays(tmp_path):
    with begun(REKINDLE_POOL_WINDOW="0", REKINDLE_EMULATED=f"memory={MEMORY}M,context={CONTEXT}M,common={tmp_path / 'gpu'}") as rekindle:
        image(rekindle, "large", sys.executable, SERVER, "large", 8001, 156)
        web = Web(rekindle, "--idle", "10ms", "--stages", "context=1h,gpu=1h", "--concurrency", 1, "--max", 2)
        held_at_once(web, 2, "first")
        web.come_to("asleep", "asleep")
        come_to(rekindle, 2)
        # Beside two of three contexts there is not enough for it.
        rekindle.restore("large", "large")
        rekindle.wait(lambda: target(rekindle)["short_of_memory"], "it to be noticed")
        assert rekindle.json("ps")["pool"] == []
        assert [one["level"] for one in web.shown()["instances"]] == ["gpu", "gpu"]
        rekindle("kill", "large")
        come_to(rekindle, 2)
        assert web.get()["count"] == 2


def test_stages_of_a_service_are_changed_by_scale():
    with begun() as rekindle:
        web = Web(rekindle, "--idle", "10ms", "--stages", "gpu=1h")
        web.come_to("asleep")
        shown = rekindle.json("scale", "web", "--stages", "gpu=1ms,host=1h", "--max", 7)
        assert shown["plan"]["stages"] == [{"level": "gpu", "ms": 1}, {"level": "host", "ms": 3_600_000}]
        assert (shown["plan"]["max"], shown["plan"]["min"]) == (7, 0)
        rekindle.wait(lambda: web.shown()["instances"][0]["level"] == "host", "it to go down")
        assert web.get()["count"] == 2, "it has gone on where it was"
        rekindle("scale", "web", "--min", 0)
        assert len(web.shown()["plan"]["stages"]) == 2, "what is not said stays"
        rekindle("scale", "web", "--stages", "none")
        assert "stages" not in web.shown()["plan"]
        for wrong in ([], ["--stages", "host=1s,gpu=1s"], ["--stages", "context=1s"]):
            with pytest.raises(CommandError):
                rekindle("scale", "web", *wrong)
