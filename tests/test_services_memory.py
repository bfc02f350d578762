"""GPU memory that the instances of services have together: who goes when others need it, and who waits."""

import contextlib
import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rekindle import PATIENCE, CommandError
from test_services import SERVER, begun, image

MB = 1 << 20
# Of each instance, which has a piece of 2 MB for its counter beside it.
SIZE = 40


class Services:
    """Services of one image each, all of which take as much."""

    def __init__(self, rekindle, *names, sizes=None, options=()):
        self.rekindle, self.ports = rekindle, {}
        for name in names:
            image(rekindle, name, sys.executable, SERVER, name, 8000, (sizes or {}).get(name, SIZE))
            self.serve(name, "--port", "127.0.0.1:0", "--to", 8000, "--idle", "1h", "--idle-end", "1h", "--max", 1, *options)

    def serve(self, name, *options):
        self.ports[name] = self.rekindle.json("serve", name, "--name", name, *options)["port"]

    def shown(self, name):
        return next(row for row in self.rekindle.json("services")["services"] if row["name"] == name)

    def stages(self, *names):
        rows = {row["name"]: row for row in self.rekindle.json("services")["services"]}
        return [next((one["stage"] for one in rows[name]["instances"]), "none") for name in names]

    def come_to(self, **stages):
        """An instance may be awake for its request before it is known to be."""
        self.rekindle.wait(lambda: self.stages(*stages) == [*stages.values()], f"{stages}")

    def places(self, name):
        """Stage and GPU of each instance."""
        return [(one["stage"], one["gpu"]) for one in self.shown(name)["instances"]]

    def used(self):
        return self.rekindle.json("services")["memory"]["used_bytes"].get("emulated", 0)

    def ask(self, name, path="/"):
        """Status, headers and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def count(self, name):
        status, _, body = self.ask(name)
        assert status == 200, body
        return json.loads(body)["count"]

    def held(self, threads, name):
        """A request that its instance has in its hands."""
        mark = self.rekindle.root / name
        asked = threads.submit(self.ask, name, f"/hold?{mark}")
        self.rekindle.wait(mark.with_suffix(".held").exists, f"{name} to be held")
        return asked

    def let_go(self, name):
        (self.rekindle.root / name).with_suffix(".go").touch()


@pytest.fixture
def limited():
    with begun(REKINDLE_SERVICE_MEMORY="100M") as instance:
        yield instance


def test_the_one_that_saves_least_goes_down_one_stage_for_who_needs_its_memory(limited):
    services = Services(limited, "a", "b", "c")
    # Each was started when it was served, and the first of them has gone for the last.
    services.come_to(a="asleep", b="running", c="running")
    for _ in range(3):
        services.count("c")
    # The memory of `a` is got back from `b`, which nobody asks for anything.
    assert services.count("a") == 2
    services.come_to(a="running", b="asleep", c="running")
    assert services.count("b") == 2, "it has gone on where it was"
    services.come_to(a="asleep", b="running", c="running")
    assert 80 * MB <= services.used() <= 100 * MB
    assert services.shown("a")["gpu_bytes"] == 0 and services.shown("b")["gpu_bytes"] >= SIZE * MB
    assert "that services may have" in limited("services")


def test_requests_wait_while_all_that_hold_memory_are_busy(limited):
    services = Services(limited, "a", "b", "c", options=("--timeout", "60s"))
    with ThreadPoolExecutor(3) as threads:
        busy = [services.held(threads, name) for name in "ab"]
        services.come_to(c="asleep")
        services.serve("c", "--timeout", "300ms")
        status, headers, body = services.ask("c")
        assert (status, headers["Retry-After"]) == (503, "1") and b"GPU memory, and services have" in body, body
        services.serve("c", "--timeout", "60s")
        asked = threads.submit(services.count, "c")
        limited.wait(lambda: services.shown("c")["queued"] == 1, "a request that waits")
        assert "GPU memory" in services.shown("c")["problem"]
        services.let_go("b")
        assert asked.result() == 2
        services.let_go("a")
        assert [one.result()[0] for one in busy] == [200, 200]
    assert services.shown("c")["problem"] is None
    services.come_to(b="asleep")


def test_what_grows_beyond_the_limit_is_counted_and_what_never_fits_is_refused(limited):
    services = Services(limited, "a", "b")
    assert services.stages("a", "b") == ["running", "running"]
    services.count("a")
    assert services.ask("a", "/grow?30")[0] == 200
    limited.wait(lambda: services.stages("a", "b") == ["running", "asleep"], "the other one to go")
    assert services.used() <= 100 * MB
    # It comes back to what is known of it by now, for which the other has to go.
    assert services.count("b") == 2
    limited.wait(lambda: services.stages("a", "b") == ["asleep", "running"], "the larger one to go")
    with pytest.raises(CommandError) as refused:
        Services(limited, "large", sizes={"large": 120})
    message = refused.value.message
    assert message.count("\n") == 0 and "122 MB" in message and "100 MB" in message and "--service-memory" in message
    assert len(limited.json("services")["services"]) == 2


def test_one_that_stays_awake_is_nobody_s_to_take(limited):
    services = Services(limited, "a", "b", options=("--min", 1))
    with pytest.raises(CommandError) as refused:
        Services(limited, "c", options=("--timeout", "300ms"))
    assert "GPU memory" in refused.value.message and refused.value.message.count("\n") == 0
    assert services.stages("a", "b") == ["running", "running"]
    assert len(limited.json("services")["services"]) == 2


def test_on_a_full_gpu_the_same_happens_without_a_limit(tmp_path):
    with begun(REKINDLE_EMULATED=f"memory=100M,common={tmp_path / 'gpu'}") as rekindle:
        services = Services(rekindle, "a", "b", options=("--timeout", "20s"))
        for name in "abb":
            services.count(name)
        # There is no room for a third one, and nothing is waited for that takes as long as backing off.
        image(rekindle, "c", sys.executable, SERVER, "c", 8000, 10)
        services.serve("c", "--port", "127.0.0.1:0", "--to", 8000, "--max", 1, "--idle", "0s", "--idle-end", "0s")
        rekindle.wait(lambda: services.stages("c") == ["none"], "the end of its first instance")
        services.serve("c", "--idle", "1h", "--idle-end", "1h")
        rekindle.run("other", sys.executable, SERVER, "other", 8001, 12)
        rekindle.wait_lines("other", 1)
        assert services.count("c") == 2
        services.come_to(a="asleep", b="running", c="running")
        # One that is woken needs its memory back.
        assert services.count("a") == 3
        rekindle.wait(lambda: "asleep" in services.stages("b", "c"), "another one to go for it")
        # Where others than services have the memory it is said at once.
        for name in "abc":
            services.serve(name, "--idle", "0s", "--idle-end", "0s")
        rekindle.wait(lambda: services.stages("a", "b", "c") == ["none"] * 3, "the end of all")
        rekindle.run("large", sys.executable, SERVER, "large", 8002, 60)
        rekindle.wait_lines("large", 1)
        status, _, body = services.ask("a")
        assert status == 503 and b"MB of GPU memory and" in body, body


GPUS = ["emulated:0", "emulated:1"]


def asleep_on_a_full_gpu(rekindle, *options):
    """The service `a` on two GPUs, whose instance was asked and sleeps on the first, where `b` stays awake and has the memory."""
    services = Services(rekindle)
    for name in "ab":
        image(rekindle, name, sys.executable, SERVER, name, 8000, SIZE)
    kept = ("--port", "127.0.0.1:0", "--to", 8000, "--idle", "1h", "--idle-end", "1h")
    services.serve("a", *kept, *(word for gpu in GPUS for word in ("--gpu", gpu)), "--concurrency", 1, *options)
    assert services.count("a") == 2
    services.serve("b", *kept, "--gpu", GPUS[0], "--min", 1, "--max", 1)
    services.come_to(a="asleep", b="running")
    assert services.places("a") == [("asleep", GPUS[0])]
    return services


def test_one_that_would_wait_to_be_woken_sleeps_on_while_another_gpu_has_room():
    with begun(REKINDLE_SERVICE_MEMORY="60M") as rekindle:
        services = asleep_on_a_full_gpu(rekindle, "--max", 2)
        assert services.count("a") == 2, "it is another one, from the image"
        assert services.places("a") == [("asleep", GPUS[0]), ("running", GPUS[1])]
        # Once there is room it is woken for what the other one cannot take, and has lost nothing.
        rekindle("unserve", "b", "--now")
        with ThreadPoolExecutor(1) as threads:
            busy = services.held(threads, "a")
            assert services.count("a") == 3
            services.let_go("a")
            assert busy.result()[0] == 200


def test_what_an_instance_has_of_its_requests_is_not_given_up_for_a_sooner_answer():
    with begun(REKINDLE_SERVICE_MEMORY="60M") as rekindle:
        services = asleep_on_a_full_gpu(rekindle, "--max", 1, "--timeout", "300ms")
        status, _, body = services.ask("a")
        assert status == 503 and b"GPU memory" in body, body
        rekindle("unserve", "b", "--now")
        services.serve("a", "--timeout", "60s")
        assert services.count("a") == 3 and services.places("a")[0][1] == GPUS[0]


def test_a_restore_waits_for_what_a_program_that_has_ended_gives_back(tmp_path):
    with begun(REKINDLE_EMULATED=f"memory=100M,common={tmp_path / 'gpu'}", REKINDLE_FAULT="worker-ending:hang") as rekindle:
        image(rekindle, "large", sys.executable, SERVER, "large", 8000, 60)
        rekindle.reached("worker-ending")
        restored = rekindle.begin("restore", "large", "--name", "again", "--gpu", rekindle.gpu, "-d")
        time.sleep(0.3)
        assert restored.process.poll() is None, "it was not waited for"
        rekindle.let_go("worker-ending")
        restored.end()
        assert rekindle.sandbox("again")["state"] == "running"
