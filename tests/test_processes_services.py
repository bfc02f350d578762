"""Services whose program has several processes that use the GPU, as a server and its engine."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from rekindle import CommandError
from test_services import Web, begun, image
from test_services_memory import MB, Services

ENGINE = Path(__file__).parent / "processes/engine.py"


class Engines(Web):
    """The service `web` of a server and its engine: what each answers for a count is always the same."""

    def __init__(self, rekindle, *options, megabytes=1):
        self.rekindle, self.known = rekindle, {}
        image(rekindle, "one", sys.executable, ENGINE, megabytes)
        assert len(json.loads((rekindle.state / "store/images/one/manifest.json").read_text())["halves"]) == 2
        self.port = self.serve("one", "--port", "127.0.0.1:0", "--to", 8000, *options)["port"]

    def count(self):
        answer = self.get()
        assert self.known.setdefault(answer["count"], answer) == answer
        return answer["count"]

    def workers(self):
        return self.rekindle.sandbox(self.name())["workers"]

    def name(self):
        return next(row["name"] for row in self.rekindle.sandboxes() if row["pid"] and row["name"].startswith("web-"))


@pytest.fixture
def rekindle():
    with begun() as instance:
        yield instance


@pytest.mark.parametrize("level", ["gpu", "host", "disk"])
def test_instances_go_by_stages_and_come_back_with_a_request(rekindle, level):
    web = Engines(rekindle, "--level", level, "--idle", "10ms", "--idle-end", "1h")
    for number in (1, 2, 3):
        web.come_to("asleep")
        assert rekindle.sandbox("web-1")["state"] == "asleep"
        assert web.count() == number
    assert web.shown()["problem"] is None
    # To nothing, and from the image again.
    web.serve("one", "--idle-end", "0s")
    web.come_to()
    assert web.count() == 1
    rekindle("scale", "web", "--min", 1)
    rekindle.wait(lambda: "running" in web.stages(), "an instance that stays")
    rekindle.wait(lambda: len(web.workers()) == 2, "its workers alone")


def test_several_instances_have_nothing_of_each_other(rekindle):
    web = Engines(rekindle, "--min", 2, "--idle", "1h", "--concurrency", 1)
    web.come_to("running", "running")
    counts = [web.count() for _ in range(6)]
    # Each counts by itself, and none skips a number.
    assert all(count == 1 or count - 1 in counts for count in counts)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("point", ["wake-begun", "wake-restored", "wake-adopted"])
def test_a_worker_that_dies_in_a_wake_costs_a_try(point, victim):
    with begun(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        web = Engines(rekindle, "--idle", "10ms", "--idle-end", "1h", "--max", 1)
        web.come_to("asleep")
        keepers = set(web.workers())
        waking = rekindle.begin("wake", "web-1")
        rekindle.reached(point)
        others = [worker for worker in web.workers() if worker not in keepers]
        os.kill(others[victim], signal.SIGKILL)
        rekindle.let_go(point)
        with pytest.raises(CommandError, match="could not be woken"):
            waking.end()
        assert web.count() == 1 and web.count() == 2
        rekindle.wait(lambda: len(web.workers()) == 2, "nothing else to be left")


def test_an_instance_whose_engine_is_killed_while_it_sleeps_is_replaced(rekindle):
    web = Engines(rekindle, "--idle", "10ms", "--idle-end", "1h")
    web.come_to("asleep")
    assert web.count() == 1
    web.come_to("asleep")
    root = rekindle.sandbox("web-1")["pid"]
    rekindle("kill", "web-1")
    rekindle.wait(lambda: not os.path.exists(f"/proc/{root}"), "its end")
    assert web.count() == 1


def test_the_next_daemon_has_them(rekindle):
    web = Engines(rekindle, "--idle", "10ms", "--idle-end", "1h")
    web.come_to("asleep")
    assert web.count() == 1
    web.come_to("asleep")
    rekindle("shutdown")
    rekindle("ps")
    rekindle.wait(lambda: web.count() == 2, "the service to go on")


def test_the_memory_of_all_their_processes_is_counted():
    with begun(REKINDLE_SERVICE_MEMORY="100M") as rekindle:
        services = Services(rekindle)
        for name in "ab":
            image(rekindle, name, sys.executable, ENGINE, 20)
            services.serve(name, "--port", "127.0.0.1:0", "--to", 8000, "--idle", "1h", "--idle-end", "1h", "--max", 1)
        services.come_to(a="running", b="running")
        assert services.shown("a")["gpu_bytes"] >= 40 * MB and 80 * MB <= services.used() <= 100 * MB
        image(rekindle, "c", sys.executable, ENGINE, 20)
        services.serve("c", "--port", "127.0.0.1:0", "--to", 8000, "--idle", "1h", "--idle-end", "1h", "--max", 1)
        rekindle.wait(lambda: sorted(services.stages("a", "b", "c")) == ["asleep", "running", "running"], "one to have gone")
        assert services.used() <= 100 * MB
        for name in "abc":
            assert services.count(name) == 1
        image(rekindle, "large", sys.executable, ENGINE, 60)
        with pytest.raises(CommandError, match="an instance needs 12. MB of GPU memory, and services may have 100 MB"):
            services.serve("large", "--port", "127.0.0.1:0", "--to", 8000)
