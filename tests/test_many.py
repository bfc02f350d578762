"""Many instances of one image: at once, and one after the other."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from leaks import campaign
from leaks.holdings import STEADY, held
from rekindle import Rekindle, processes
from test_features import FEATURES
from test_training import AHEAD, OPTIONS, reference  # noqa: F401
from training.pace import Pace

INSTANCES = 4
RESTORES = 100
# Less than the image has, so that some comes from each cache and some from the store.
CACHES = {"REKINDLE_HOST_CACHE": "48M", "REKINDLE_GPU_CACHE": "16M"}


def test_instances_of_an_image_run_at_once_each_bit_for_bit(rekindle, reference):  # noqa: F811
    pace = Pace(rekindle, 12 + AHEAD)
    rekindle.run("training", *pace.command(*OPTIONS, "--pause", 0.05))
    rekindle.wait_lines("training", 12)
    rekindle("checkpoint", "training", "--to", "image", "--stop")
    before = rekindle.lines("training")
    names = [f"instance-{n}" for n in range(INSTANCES)]
    with ThreadPoolExecutor(INSTANCES) as pool:
        list(pool.map(lambda name: rekindle.restore("image", name), names))
    # Each in namespaces of its own, and all from the same pages.
    pids = [rekindle.sandbox(name)["pid"] for name in names]
    assert len({os.readlink(f"/proc/{pid}/ns/pid") for pid in pids}) == INSTANCES
    inodes = {line.split()[4] for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/pages/anon-" in line}
    assert len(inodes) == 1
    pace.end()
    for name in names:
        assert before + rekindle.wait_end(name) == reference


NAMED_SOCKET = """
import os, select, socket
driver = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
driver.bind(b"\\0cuda-uvmfd-%d-%d" % (os.stat("/proc/self/ns/pid").st_ino, os.getpid()))
driver.listen()
waiting = select.poll()
waiting.register(driver, select.POLLIN)
n = 0
while True:
    print(n, waiting.poll(20), flush=True)
    n += 1
"""


def test_what_the_driver_names_after_a_process_does_not_hinder_a_second_restore(rekindle):
    rekindle.run("first", sys.executable, "-c", NAMED_SOCKET)
    rekindle.wait_lines("first", 3)
    rekindle("checkpoint", "first", "--to", "image", "--leave-running")
    for name in ("second", "third"):
        rekindle.restore("image", name)
        lines = rekindle.wait_lines(name, 3)
        assert all(line.endswith(" []") for line in lines), "who waits there is told of nothing"
    rekindle("checkpoint", "third", "--to", "next", "--stop")
    rekindle.restore("next", "fourth")
    assert all(line.endswith(" []") for line in rekindle.wait_lines("fourth", 3))


AUTOBOUND = """
import socket, time
a, b = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in "ab")
for one in (a, b):
    one.bind("")
a.connect(b.getsockname())
b.connect(a.getsockname())
door = socket.socket(socket.AF_UNIX)
door.bind("")
door.listen()
inside = socket.socket(socket.AF_UNIX)
inside.connect(door.getsockname())
outside, _ = door.accept()
a.send(b"on the way")
for n in range(10_000):
    later = socket.socket(socket.AF_UNIX)
    later.connect(door.getsockname())
    door.accept()[0].send(b"later")
    inside.send(b"inside")
    a.send(b"%d" % n)
    b.send(b"back")
    assert (later.recv(9), outside.recv(9), a.recv(9)) == (b"later", b"inside", b"back")
    assert b.recv(99) == (b"%d" % (n - 1) if n else b"on the way")
    print(*(one.getsockname() for one in (a, b, door)), flush=True)
    time.sleep(0.02)
"""


def test_sockets_that_the_kernel_named_have_other_names_in_each_instance(rekindle):
    rekindle.run("first", sys.executable, "-c", AUTOBOUND)
    rekindle.wait_lines("first", 3)
    rekindle("checkpoint", "first", "--to", "image", "--leave-running")
    instances = ["second", "third", "fourth"]
    with ThreadPoolExecutor(len(instances)) as pool:
        list(pool.map(lambda name: rekindle.restore("image", name), instances))
    names = [rekindle.wait_lines(name, 3)[-1].split() for name in ("first", *instances)]
    assert len({name for row in names for name in row}) == 12, names
    assert not list(rekindle.state.glob("pages/*.images"))
    # As soon as they are free, they are those of the image.
    rekindle("kill", "first", *instances)
    rekindle.restore("image", "again")
    assert rekindle.wait_lines("again", 3)[-1].split() == names[0]


def cached(rekindle):
    """Bytes of the one image in the host's cache and in the GPU's, and whether both are full."""
    shown = rekindle.json("images")
    caches, held = shown["caches"], shown["images"][0]["cached_bytes"]
    gpu = rekindle.gpu
    held = held["host"], held["gpus"].get(gpu, 0)
    return held, held == (caches["host"]["limit_bytes"], caches["gpu_limit_bytes"])


@pytest.mark.parametrize(
    "program, caches, restores",
    [("pinned", {}, RESTORES), ("buffers", CACHES, RESTORES // 3)],
    ids=["from the store", "from caches"],
)
def test_restores_and_kills_in_a_row_leave_nothing_behind(program, caches, restores):
    # So many wait before as after.
    with Rekindle(REKINDLE_POOL_WINDOW="0", **caches) as rekindle:
        rekindle.run("program", sys.executable, FEATURES / f"{program}.py", rekindle.root / "go")
        rekindle.wait_lines("program", 1)
        rekindle("checkpoint", "program", "--to", "image", "--stop")

        def once():
            rekindle.restore("image", "again")
            rekindle("kill", "again")

        def settled(is_meant):
            """Once the last one's worker has gone and the next ones wait, and what is held is what is meant."""
            found = []

            def is_settled():
                pool = rekindle.json("ps")["pool"]
                found[:] = [*held(rekindle), *cached(rekindle)]
                now, _, _, full = found
                ready = pool and all(spare["ready"] for spare in pool)
                return ready and full and now["processes"] == 1 + len(pool) and is_meant(now)

            try:
                rekindle.wait(is_settled, "all to settle")
            except TimeoutError:
                raise AssertionError(f"this stays: {found}, {processes(rekindle.root)}") from None
            return found

        def more(now):
            return {what: (before[what], count) for what, count in now.items() if count > before[what]}

        for _ in range(10):
            once()
        seen = []

        def is_steady(now):
            """What a restore has brought along goes by and by."""
            seen.append(now)
            return seen[-STEADY:] == [now] * STEADY

        before, memory, in_caches, _ = settled(is_steady)
        for _ in range(restores):
            once()
        after, memory_after, in_caches_after, _ = settled(lambda now: not more(now))
        assert not more(after) and in_caches_after == in_caches
        assert all(in_caches) == bool(caches)
        # Threads come and go, and the allocator keeps for the next what they worked with.
        assert memory_after - memory < 6 << 20
        (rekindle.root / "go").touch()
        rekindle.restore("image", "last")
        assert rekindle.wait_end("last") == ["ok"]


def test_many_sandboxes_at_once_after_restores_in_a_row_leave_nothing_behind():
    with Rekindle(REKINDLE_POOL_WINDOW="0") as rekindle:
        found = campaign.run(rekindle, restores=8, sandboxes=6)
    assert not found["leaked"], (found["leaked"], found["new_files"])
