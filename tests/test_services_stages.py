"""Services whose idle instances go down stage by stage, each with an interval of its own, and are woken from each."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from rekindle import CommandError
from test_bad_input import kill_daemon
from test_services import Web, begun
from test_services_memory import MB, SIZE, Services

# Long enough for a request to come before the next one.
HOUR = 3_600_000


@pytest.fixture
def rekindle():
    with begun() as instance:
        yield instance


def levels(web):
    """The stage of the only instance, and where it sleeps."""
    return [(one["stage"], one["level"]) for one in web.shown()["instances"]]


def come_to(web, level):
    web.rekindle.wait(lambda: levels(web) == [("asleep", level)], f"an instance that sleeps at level {level}")


def traces(rekindle):
    return rekindle.json("trace", "web-1", "--svg", rekindle.root / "picture.svg")["traces"]


def test_it_goes_down_stage_by_stage_is_not_woken_and_ends(rekindle):
    web = Web(rekindle, "--idle", "10ms", "--stages", "gpu=200ms,host=200ms,disk=1h")
    come_to(web, "disk")
    told = [(trace["operation"], trace["image"]) for trace in traces(rekindle) if trace["operation"] != "restore"]
    assert told == [("sleep", "gpu"), ("sleep", "host"), ("sleep", "disk")]
    web.serve("one", "--stages", "gpu=1ms,host=1ms,disk=1ms")
    web.come_to()
    assert web.get()["count"] == 2, "from the image"


def test_a_request_wakes_it_from_each_stage(rekindle):
    web = Web(rekindle, "--idle", "10ms", "--stages", "gpu=1h,host=1h,disk=1h")
    for count, (level, stages) in enumerate(
        (
            ("gpu", "gpu=1h,host=1h,disk=1h"),
            ("host", "gpu=1ms,host=1h,disk=1h"),
            ("disk", "gpu=1ms,host=1ms,disk=1h"),
        )
    ):
        come_to(web, "gpu")
        # Stages hold for what sleeps already.
        web.serve("one", "--stages", stages)
        come_to(web, level)
        assert f"1 asleep ({level})" in rekindle("services") and f"asleep ({level})" in rekindle("ps")
        web.serve("one", "--stages", "gpu=1h,host=1h,disk=1h")
        assert web.get()["count"] == count + 2, "it has gone on where it was"


def test_stages_are_kept_changed_and_taken_back(rekindle):
    web = Web(rekindle, "--idle", "10ms", "--stages", "host=1h")
    come_to(web, "host")
    # What is not said stays as it is.
    web.serve("one", "--max", 2)
    assert web.shown()["plan"]["stages"] == [{"level": "host", "ms": HOUR}]
    kill_daemon(rekindle)
    come_to(web, "host")
    web.serve("one", "--stages", "gpu=0s,host=0s,disk=1h")
    assert web.shown()["plan"]["stages"] == [{"level": "disk", "ms": HOUR}]
    # It sleeps above the only stage that there is now, whose time it has; the next time it sleeps there.
    assert web.get()["count"] == 2
    come_to(web, "disk")
    web.serve("one", "--stages", "none")
    assert "stages" not in web.shown()["plan"]
    assert web.get()["count"] == 3
    come_to(web, "host")
    web.serve("one", "--stages", "gpu=1h")
    web.serve("one", "--idle-end", "1h")
    assert "stages" not in web.shown()["plan"]
    for wrong in (["--stages", "host=1s,gpu=1s"], ["--stages", "gpu=1s", "--level", "gpu"], ["--stages", "gpu=1s", "--idle-end", "1s"]):
        with pytest.raises(CommandError):
            web.serve("one", *wrong)


def test_a_request_meanwhile_is_answered_by_the_same_instance():
    with begun(REKINDLE_FAULT="down-restored:hang") as rekindle:
        web = Web(rekindle, "--idle", "10ms", "--stages", "gpu=10ms,host=1h", "--max", 1)
        rekindle.reached("down-restored")
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(web.get)
            rekindle.wait(lambda: web.shown()["queued"] == 1 or asked.done(), "the request to wait")
            rekindle.let_go("down-restored")
            assert asked.result()["count"] == 2
        assert [one["name"] for one in web.shown()["instances"]] == ["web-1"]


def test_one_that_cannot_go_down_sleeps_on_where_it_is():
    with begun(REKINDLE_FAULT="down-saved") as rekindle:
        web = Web(rekindle, "--idle", "10ms", "--stages", "gpu=10ms,host=1h")
        come_to(web, "gpu")
        rekindle.wait(lambda: any(trace["problem"] for trace in traces(rekindle)), "it to be tried")
        come_to(web, "gpu")
        assert web.shown()["problem"] is None
        assert web.get()["count"] == 2


def test_memory_that_others_need_is_given_back_by_what_sleeps_on_the_gpu():
    with begun(REKINDLE_SERVICE_MEMORY="100M") as limited:
        services = Services(limited, "a", "b")
        for name in "ab":
            services.serve(name, "--idle", "10ms", "--stages", "gpu=1h,host=1h")
        services.come_to(a="asleep", b="asleep")
        assert [services.shown(name)["instances"][0]["level"] for name in "ab"] == ["gpu", "gpu"]
        assert services.used() >= 2 * SIZE * MB
        more = Services(limited, "c")
        rows = lambda: {row["name"]: [one["level"] for one in row["instances"]] for row in limited.json("services")["services"]}  # noqa: E731
        # One of both has gone down for it, and sleeps on.
        limited.wait(lambda: sorted(map(str, (rows()["a"], rows()["b"]))) == ["['gpu']", "['host']"], "one to have gone down")
        assert more.count("c") == 2
        for name in "ab":
            assert services.count(name) == 2, "it has gone on where it was"
        assert services.used() <= 100 * MB
