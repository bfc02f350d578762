"""Workers that have served a program and wait for the next one: what one program had is nothing to the other."""

import os
import random
import signal
import sys
from collections import Counter

import pytest
from rekindle import Rekindle
from test_bad_input import kill_daemon
from test_features import ALONE, FEATURES
from test_pool import CONTEXT, MEMORY, new
from test_services import SERVER, begun, image
from test_tenants import Tenants


@pytest.fixture
def rekindle():
    with Rekindle(REKINDLE_POOL_WINDOW="20") as instance:
        yield instance


def returned(rekindle):
    return {worker["pid"] for worker in rekindle.json("ps")["pool"] if worker["returned"]}


def ended(rekindle, name):
    """Ends a program, whose worker waits again then: its pid."""
    (worker,) = rekindle.sandbox(name)["workers"]
    rekindle("kill", name)
    rekindle.wait(lambda: worker in returned(rekindle), f"the worker of {name}")
    return worker


def restored(rekindle, name, as_name):
    rekindle.restore(name, as_name)
    (worker,) = rekindle.sandbox(as_name)["workers"]
    return worker


def test_one_context_serves_one_program_after_the_other(rekindle):
    image(rekindle, "one", sys.executable, SERVER, "one")
    image(rekindle, "two", sys.executable, SERVER, "two", 8000, 30)
    restored(rekindle, "one", "first")
    worker = ended(rekindle, "first")
    for turn in range(6):
        assert restored(rekindle, ["one", "two"][turn % 2], f"turn-{turn}") == worker
        assert worker not in returned(rekindle)
        assert ended(rekindle, f"turn-{turn}") == worker


def test_programs_of_all_kinds_have_one_context_after_the_other(rekindle):
    """Each goes on in a context that others had, and is imaged there; the image comes back as any other."""
    going = {name: rekindle.root / f"{name}.go" for name in ALONE}
    for name in ALONE:
        rekindle.run(name, sys.executable, FEATURES / f"{name}.py", going[name])
        assert rekindle.wait_lines(name, 1)[:1] == ["ready"]
        rekindle("checkpoint", name, "--to", name, "--stop")
    workers = []
    order = random.Random(7).sample(ALONE, len(ALONE))
    for name in order:
        workers.append(restored(rekindle, name, f"again-{name}"))
        rekindle("checkpoint", f"again-{name}", "--to", f"later-{name}", "--stop")
        rekindle.wait(lambda: not rekindle.sandbox(f"again-{name}")["pid"], "its end")
    for name in reversed(order):
        workers.append(restored(rekindle, f"later-{name}", f"last-{name}"))
        going[name].touch()
        assert rekindle.wait_end(f"last-{name}") == ["ok"], name
    # Code that was loaded whole, and more than one process's memory, go with their contexts.
    assert len(workers) - len(set(workers)) > len(workers) / 4, workers


def test_who_is_started_has_a_context_of_which_nobody_had_anything(rekindle):
    image(rekindle, "one", sys.executable, SERVER, "one")
    restored(rekindle, "one", "first")
    worker = ended(rekindle, "first")
    # More at once than there are new ones that wait.
    others = [f"other-{number}" for number in range(4)]
    for name in others:
        rekindle("run", "-d", "--name", name, "--gpu", rekindle.gpu, "--network", "private", "--", sys.executable, SERVER, name)
    for name in others:
        assert rekindle.wait_lines(name, 1)
        assert worker not in rekindle.sandbox(name)["workers"]
    assert worker in returned(rekindle)


def test_all_memory_is_there_for_the_next(tmp_path):
    emulated = f"memory={MEMORY}M,context={CONTEXT}M,common={tmp_path / 'gpu'}"
    with Rekindle(REKINDLE_POOL="1", REKINDLE_EMULATED=emulated) as rekindle:
        image(rekindle, "small", sys.executable, SERVER, "small", 8000, 60)
        restored(rekindle, "small", "first")
        rekindle("kill", "first")
        # Twice 60 MB and two or three contexts are more than half of the memory: of what is not given back there is soon no more.
        for turn in range(12):
            rekindle.restore("small", f"turn-{turn}")
            rekindle("kill", f"turn-{turn}")


def test_it_waits_no_longer_than_workers_are_remembered(rekindle):
    rekindle.environment["REKINDLE_POOL_WINDOW"] = "3"
    rekindle("shutdown")
    image(rekindle, "one", sys.executable, SERVER, "one")
    restored(rekindle, "one", "first")
    worker = ended(rekindle, "first")
    rekindle.wait(lambda: not os.path.exists(f"/proc/{worker}"), "its end")
    assert returned(rekindle) == set()
    assert new(rekindle)


def test_one_that_is_killed_while_it_waits_is_nobody_s(rekindle):
    image(rekindle, "one", sys.executable, SERVER, "one")
    restored(rekindle, "one", "first")
    worker = ended(rekindle, "first")
    os.kill(worker, signal.SIGKILL)
    assert restored(rekindle, "one", "second") != worker


def test_it_ends_with_the_daemon(rekindle):
    image(rekindle, "one", sys.executable, SERVER, "one")
    restored(rekindle, "one", "first")
    worker = ended(rekindle, "first")
    restored(rekindle, "one", "second")
    rekindle("shutdown")
    rekindle.wait(lambda: worker in rekindle.sandbox("second")["workers"], "the next daemon")
    # It has a program, and goes on; nobody waits for it behind that.
    rekindle("kill", "second")
    rekindle.wait(lambda: not os.path.exists(f"/proc/{worker}"), "its end")


def test_a_worker_serves_32_programs_at_most(rekindle):
    image(rekindle, "one", sys.executable, SERVER, "one")
    served = Counter()
    for turn in range(36):
        worker = restored(rekindle, "one", f"turn-{turn}")
        served[worker] += 1
        rekindle("kill", f"turn-{turn}")
        rekindle.wait(lambda: worker in returned(rekindle) or not os.path.exists(f"/proc/{worker}"), "what becomes of it")  # noqa: B023
    assert 20 < max(served.values()) <= 32 and len(served) > 1, served


def test_no_tenant_has_a_context_that_another_had():
    with begun(REKINDLE_POOL_WINDOW="20") as rekindle:
        tenants = Tenants(rekindle)
        tenants.take()
        for name in ("a", "b"):
            tenants.create(name)

        def worker_of(service, tenant):
            """That of an instance, which is ended then."""
            tenants.begin(service, "--tenant", tenant, "--idle", "1h")
            assert tenants.status(service, tenant) == 200
            (row,) = [row for row in rekindle.sandboxes() if row["state"] == "running"]
            rekindle("unserve", service, "--tenant", tenant, "--now")
            (worker,) = row["workers"]
            rekindle.wait(lambda: worker in returned(rekindle), "its worker")
            return worker

        first = worker_of("web", "a")
        assert worker_of("other", "b") != first
        assert worker_of("again", "a") == first


def test_code_that_was_loaded_whole_goes_with_its_context():
    """Where its globals lie depends on all that was loaded before, and it is restored where nothing was."""
    with Rekindle(REKINDLE_TUNING="gpu.code=whole", REKINDLE_POOL_WINDOW="20") as rekindle:
        go = rekindle.root / "go"
        rekindle.run("globals", sys.executable, FEATURES / "globals.py", go)
        assert rekindle.wait_lines("globals", 1)
        (worker,) = rekindle.sandbox("globals")["workers"]
        rekindle("checkpoint", "globals", "--to", "image", "--stop")
        rekindle.wait(lambda: not os.path.exists(f"/proc/{worker}"), "the worker's end")
        image(rekindle, "one", sys.executable, SERVER, "one")
        waits = returned(rekindle)
        assert restored(rekindle, "image", "again") not in waits
        go.touch()
        assert rekindle.wait_end("again") == ["ok"]


def test_nobody_waits_for_a_worker_whose_daemon_is_dead(rekindle):
    """The next one knows it by its process, which keeps what sleeps."""
    image(rekindle, "one", sys.executable, SERVER, "one")
    worker = restored(rekindle, "one", "first")
    kill_daemon(rekindle)
    for level in ("gpu", "host"):
        rekindle("sleep", "first", "--level", level)
        assert rekindle.sandbox("first")["workers"] == [worker]
        rekindle("wake", "first")
        (worker,) = rekindle.sandbox("first")["workers"]
        kill_daemon(rekindle)
    rekindle("kill", "first")
    rekindle.wait(lambda: not os.path.exists(f"/proc/{worker}"), "its end")


ENDLESS = f"""
import sys, time
sys.path.insert(0, {str(FEATURES)!r})
from gpu import call, open_device
open_device()
address = call("cuMemAlloc", 64)
call("cuMemsetD32", address, 0, 16)
call("cuStreamWaitValue32", 0, address, 1, 0)
print("waits", flush=True)
time.sleep(3600)
"""


def test_work_that_never_ends_goes_with_its_context(rekindle):
    rekindle.run("endless", sys.executable, "-c", ENDLESS)
    assert rekindle.wait_lines("endless", 1)
    (worker,) = rekindle.sandbox("endless")["workers"]
    rekindle("kill", "endless")
    rekindle.wait(lambda: not os.path.exists(f"/proc/{worker}"), "the end of its work")
    assert worker not in returned(rekindle)


def test_who_falls_asleep_leaves_its_context_to_the_next(rekindle):
    image(rekindle, "one", sys.executable, SERVER, "one")
    worker = restored(rekindle, "one", "first")
    for level in ("gpu", "host", "disk"):
        rekindle("sleep", "first", "--level", level)
        rekindle.wait(lambda: worker in returned(rekindle), "its worker")
        (keeper,) = rekindle.sandbox("first")["workers"]
        assert keeper != worker
        assert restored(rekindle, "one", f"beside-{level}") == worker
        rekindle("wake", "first")
        assert ended(rekindle, f"beside-{level}") == worker
        (worker,) = rekindle.sandbox("first")["workers"]
        rekindle.wait(lambda: not os.path.exists(f"/proc/{keeper}"), "the keeper's end")
    kept = rekindle.sandbox("first")["workers"]
    os.kill(rekindle.sandbox("first")["pid"], signal.SIGKILL)
    rekindle.wait(lambda: set(kept) <= returned(rekindle), "its worker")
