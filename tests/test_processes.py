"""Programs with several processes that use the GPU: one image has them all, and they come back together."""

import json
import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon
from test_ipc import Scene as Relays
from test_pool import come_to, target

COUNTERS = Path(__file__).parent / "processes/counters.py"


class Scene:
    """A program of several counters, and what is known of each of their steps."""

    def __init__(self, rekindle, processes=2):
        self.rekindle, self.processes = rekindle, processes
        self.known = {}

    def begin(self, name, *options):
        arguments = ("--gpu", self.rekindle.gpu, "--", sys.executable, COUNTERS, self.processes)
        self.rekindle("run", "-d", "--name", name, *options, *arguments)
        self.goes_on(name)
        return self

    def steps(self, name):
        """The steps that each process has told in this run; each one's are in a row, and have what they always have."""
        steps = defaultdict(list)
        for line in self.rekindle.lines(name):
            if not line[0].isdigit():
                continue
            number, step, found = line.split()
            number, step = int(number), int(step)
            assert not steps[number] or step == steps[number][-1] + 1, (number, step)
            assert self.known.setdefault((number, step), found) == found, (number, step)
            steps[number].append(step)
        return steps

    def goes_on(self, name, numbers=None):
        """Until each process has told some more steps."""
        numbers = range(self.processes) if numbers is None else numbers
        before = {number: len(steps) for number, steps in self.steps(name).items()}

        def has_gone_on():
            steps = self.steps(name)
            return all(len(steps[number]) > before.get(number, 0) + 3 for number in numbers)

        self.rekindle.wait(has_gone_on, f"steps of {name}")

    def follows(self, name, before):
        """This run goes on right where that one had come to."""
        self.goes_on(name)
        steps = self.steps(name)
        assert {number: steps[number][0] - 1 for number in before} == {number: of[-1] for number, of in before.items()}

    def workers(self, name):
        """Their pids, that of the first process first."""
        return self.rekindle.sandbox(name)["workers"]

    def process(self, name, number):
        """The pid of one of the processes."""
        root = self.rekindle.sandbox(name)["pid"]
        if number == 0:
            return root
        words = f"{COUNTERS}\0{self.processes}\0{number}\0".encode()
        children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
        return next(int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(words))


def test_all_come_back_where_they_were_generation_after_generation(rekindle):
    scene = Scene(rekindle, 3).begin("a")
    report = rekindle.json("checkpoint", "a", "--to", "first", "--stop")
    assert report["gpu_processes"] == 3 and report["warnings"] == []
    before = scene.steps("a")
    assert rekindle.restore("first", "b")["gpu_processes"] == 3
    scene.follows("b", before)
    rekindle("kill", "b")
    # The same image once more, and an image of what comes of it.
    rekindle.restore("first", "c")
    scene.follows("c", before)
    rekindle("checkpoint", "c", "--to", "second", "--stop")
    before = scene.steps("c")
    rekindle("rmi", "first")
    rekindle("verify", "second")
    for name in ("d", "e"):
        rekindle.restore("second", name)
    for name in ("d", "e"):
        scene.follows(name, before)


def test_they_go_on_while_their_image_is_written(rekindle):
    scene = Scene(rekindle).begin("a")
    for image in ("one", "two"):
        report = rekindle.json("checkpoint", "a", "--to", image, "--leave-running", "--prove")
        begins = {name: [row["start_us"] for row in report["phases"] if row["name"] == name] for name in ("code", "quiesce")}
        assert len(begins["code"]) == 2 and max(begins["code"]) < begins["quiesce"][0], "code of both is written before they stand still"
        halves = {part["name"].split("/")[0] for part in rekindle.json("inspect", image)["parts"] if part["kind"] == "module"}
        assert len(halves) == 2, halves
        scene.goes_on("a")
    rekindle("kill", "a")
    rekindle("export", "two", rekindle.root / "file")
    rekindle("rmi", "two")
    rekindle("import", rekindle.root / "file")
    for image in ("one", "two"):
        rekindle("verify", image)
        rekindle.restore(image, f"from-{image}")
        scene.goes_on(f"from-{image}")


def test_as_many_workers_wait_as_an_image_has_processes():
    with Rekindle(REKINDLE_POOL_WINDOW="0") as rekindle:
        scene = Scene(rekindle, 3).begin("a")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        for name in ("b", "c"):
            waiting = come_to(rekindle, 3)
            assert (target(rekindle)["processes"], target(rekindle)["recent"]) == (3, 0)
            returned = {worker["pid"] for worker in rekindle.json("ps")["pool"] if worker["returned"]}
            rekindle.restore("x", name)
            assert set(scene.workers(name)) <= waiting | returned
        rekindle("kill", "b", "c")
        kill_daemon(rekindle)
        waiting = come_to(rekindle, 3)
        rekindle.restore("x", "d")
        assert set(scene.workers("d")) == waiting


def test_none_wait_for_processes_that_share_contexts():
    with Rekindle(REKINDLE_POOL_WINDOW="0") as rekindle:
        scene = Scene(rekindle, 3).begin("a", "--share", "us")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        rekindle("restore", "x", "--name", "b", "--share", "us", "--gpu", rekindle.gpu, "-d")
        scene.goes_on("b")
        assert target(rekindle)["processes"] == 0


def test_where_one_worker_waits_the_process_with_most_memory_has_it():
    with Rekindle(REKINDLE_POOL_LIMIT="1") as rekindle:
        scene = Scene(rekindle, 3).begin("a", "--env", f"COUNTERS_LAST_BYTES={48 << 20}")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        (waits,) = come_to(rekindle, 1)
        rekindle.restore("x", "b")
        assert [worker for worker in scene.workers("b") if has_mapped(worker, 48 << 20)] == [waits]


def has_mapped(worker, size):
    """Whether it has memory of this size on its GPU."""
    ranges = (line.split()[0].split("-") for line in Path(f"/proc/{worker}/maps").read_text().splitlines())
    return any(int(end, 16) - int(start, 16) == size for start, end in ranges)


def test_one_that_ends_leaves_the_others_what_they_have(rekindle):
    scene = Scene(rekindle).begin("a")
    rekindle("checkpoint", "a", "--to", "both", "--stop")
    rekindle.restore("both", "b")
    scene.goes_on("b")
    os.kill(scene.process("b", 1), signal.SIGKILL)
    rekindle.wait(lambda: len(scene.workers("b")) == 1, "the end of its worker")
    scene.goes_on("b", [0])
    # What is left is a program like any other.
    assert rekindle.json("checkpoint", "b", "--to", "one", "--stop")["gpu_processes"] == 1
    assert '"halves"' not in (rekindle.state / "store/images/one/manifest.json").read_text()
    rekindle.restore("one", "c")
    scene.goes_on("c", [0])
    assert rekindle.sandbox("c")["problem"] is None


def test_one_that_ends_while_all_load_leaves_the_others_loading():
    with Rekindle(REKINDLE_FAULT="loading-begun:hang") as rekindle:
        scene = Scene(rekindle).begin("a")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        before = scene.steps("a")
        rekindle.restore("x", "b")
        rekindle.reached("loading-begun")
        os.kill(scene.process("b", 1), signal.SIGKILL)
        rekindle.let_go("loading-begun")
        scene.goes_on("b", [0])
        assert scene.steps("b")[0][0] == before[0][-1] + 1
        rekindle.wait(lambda: len(scene.workers("b")) == 1, "the end of its worker")
        assert rekindle.sandbox("b")["problem"] is None


def test_the_memory_of_all_is_compared_with_what_is_free(rekindle):
    bytes_each = 70 << 20
    scene = Scene(rekindle).begin("a", "--env", f"COUNTERS_BYTES={bytes_each}")
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    assert rekindle.json("inspect", "x")["sizes"]["gpu"] > 2 * bytes_each
    with pytest.raises(CommandError, match="it needs 7. MB of GPU memory and 6. MB are free"):
        rekindle("restore", "x", "--gpu", "emulated:memory=64M")
    before = scene.steps("a")
    # Each process has an emulated GPU of its own, where two of them together would not have room.
    rekindle("restore", "x", "--name", "b", "--gpu", "emulated:memory=100M", "-d")
    scene.follows("b", before)


@pytest.mark.parametrize("after", ["--stop", "--leave-running"])
@pytest.mark.parametrize("point", ["quiesced", "frozen"])
def test_a_worker_that_dies_in_a_checkpoint_is_named_and_the_others_go_on(point, after):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        scene = Scene(rekindle).begin("a")
        checkpoint = rekindle.begin("checkpoint", "a", "--to", "x", after)
        rekindle.reached(point)
        os.kill(scene.workers("a")[1], signal.SIGKILL)
        rekindle.let_go(point)
        with pytest.raises(CommandError, match="the GPU worker ended while it was to .*signal 9"):
            checkpoint.end()
        assert rekindle.json("images")["images"] == []
        rekindle.wait(lambda: any("failed" in line for line in rekindle.lines("a")), "what its process sees")
        scene.goes_on("a", [0])
        assert rekindle.json("checkpoint", "a", "--to", "x", after)["gpu_processes"] == 1


def test_a_restore_begins_again_when_a_worker_dies_before_the_program_runs():
    with Rekindle(REKINDLE_FAULT="restore-complete:hang") as rekindle:
        scene = Scene(rekindle).begin("a")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        before = scene.steps("a")
        restore = rekindle.begin("restore", "x", "--name", "b", "-d")
        rekindle.reached("restore-complete")
        os.kill(scene.workers("b")[1], signal.SIGKILL)
        rekindle.let_go("restore-complete")
        restore.end()
        scene.follows("b", before)


@pytest.mark.parametrize("victims", [[0], [1], [0, 1]])
def test_a_worker_that_dies_while_it_loads_is_replaced(victims):
    with Rekindle(REKINDLE_FAULT="loading-begun:hang") as rekindle:
        scene = Scene(rekindle).begin("a")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        before = scene.steps("a")
        rekindle.restore("x", "b")
        rekindle.reached("loading-begun")
        workers = scene.workers("b")
        for victim in victims:
            os.kill(workers[victim], signal.SIGKILL)
        rekindle.wait(lambda: len(set(scene.workers("b")) - set(workers)) == len(victims), "others in their place")
        rekindle.let_go("loading-begun")
        scene.follows("b", before)
        assert rekindle.sandbox("b")["problem"] is None


def test_a_process_that_begins_to_use_the_gpu_in_a_checkpoint_is_in_the_image():
    with Rekindle(REKINDLE_FAULT="quiesced:hang") as rekindle:
        scene = Scene(rekindle)
        late = rekindle.root / "late"
        rekindle.run(
            "a",
            "sh",
            "-c",
            f"(while [ ! -e {late} ]; do sleep 0.01; done; exec {sys.executable} {COUNTERS} 2 1) & exec {sys.executable} {COUNTERS} 1",
        )
        scene.goes_on("a", [0])
        checkpoint = rekindle.begin("checkpoint", "a", "--to", "x", "--stop", "--json")
        rekindle.reached("quiesced")
        late.touch()
        scene.goes_on("a", [1])
        rekindle.let_go("quiesced")
        assert json.loads(checkpoint.end())["gpu_processes"] == 2
        before = scene.steps("a")
        rekindle.restore("x", "b")
        scene.follows("b", before)


@pytest.mark.parametrize("after", ["--stop", "--leave-running"])
def test_a_full_disk_leaves_them_running(after):
    with Rekindle() as rekindle:
        # Then the store has the client, and a daemon need not write it.
        rekindle.run("first", "sleep", 60)
        rekindle("checkpoint", "first", "--to", "first", "--stop")
        rekindle("shutdown")
        # Of each process that writes: a worker comes no further than its half.
        rekindle.environment["REKINDLE_FAULT"] = "disk:20000"
        scene = Scene(rekindle).begin("a")
        with pytest.raises(CommandError, match="the GPU worker could not .*: disk full"):
            rekindle("checkpoint", "a", "--to", "x", after)
        assert [image["name"] for image in rekindle.json("images")["images"]] == ["first"]
        scene.goes_on("a")


def test_each_is_profiled():
    with Rekindle(REKINDLE_HOST_CACHE="64M", REKINDLE_GPU_CACHE="64M") as rekindle:
        scene = Scene(rekindle).begin("a")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        before = scene.steps("a")
        profile = json.loads(rekindle("profile", "--json", "x", "--", "sleep", 1))
        halves = json.loads((rekindle.state / "store/images/x/manifest.json").read_text())["halves"]
        assert len(halves) == 2 and {part.split("/")[0] for part in profile["parts"]} == {str(half) for half in halves}
        for half in halves:
            known = json.loads((rekindle.state / f"store/images/x/half@{half}/load-order.json").read_text())
            assert [f"{half}/{part}" for part in known["parts"]] == [part for part in profile["parts"] if part.startswith(f"{half}/")]
        # Of each the numbers are written to, and what is there and no more is not.
        assert {name.split("/")[0] for name in profile["unwritten"]} <= {str(half) for half in halves}
        rekindle.wait(lambda: not [row for row in rekindle.sandboxes() if row["pid"]], "the end of what was profiled")
        rekindle("verify", "x")
        rekindle.restore("x", "b")
        scene.follows("b", before)


@pytest.mark.parametrize("level", ["gpu", "host", "disk"])
def test_all_sleep_and_wake_together(rekindle, level):
    scene = Scene(rekindle, 3).begin("a")
    for _ in range(2):
        # They are never idle here: what comes after is a call, which wakes all.
        assert rekindle.json("sleep", "a", "--level", level)["bytes"] > 0
        scene.goes_on("a")
    assert len(scene.workers("a")) == 3
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    before = scene.steps("a")
    rekindle.restore("x", "b")
    scene.follows("b", before)


def asleep(rekindle, *options):
    """A program of two counters that sleeps, and the file that keeps it asleep while it is there."""
    pause = rekindle.root / "pause"
    scene = Scene(rekindle).begin("a", "--env", f"COUNTERS_PAUSE={pause}")
    pause.touch()
    time.sleep(0.3)
    rekindle("sleep", "a", *options)
    assert rekindle.sandbox("a")["state"] == "asleep"
    return scene, pause


@pytest.mark.parametrize("level", ["gpu", "host"])
def test_one_that_ends_while_all_sleep_leaves_the_others_what_they_have(rekindle, level):
    scene, pause = asleep(rekindle, "--level", level)
    os.kill(scene.process("a", 1), signal.SIGKILL)
    pause.unlink()
    scene.goes_on("a", [0])
    rekindle.wait(lambda: len(scene.workers("a")) == 1, "the end of its worker")
    assert rekindle.json("checkpoint", "a", "--to", "x", "--stop")["gpu_processes"] == 1


def test_all_sleep_on_while_no_daemon_runs(rekindle):
    scene, pause = asleep(rekindle)
    kill_daemon(rekindle)
    assert rekindle.sandbox("a")["state"] == "asleep"
    rekindle("wake", "a")
    pause.unlink()
    scene.goes_on("a")


@pytest.mark.parametrize("point", ["sleep-saved", "sleep-noted", "sleep-ready"])
def test_all_stay_awake_if_one_cannot_sleep(point):
    with Rekindle(REKINDLE_FAULT=point) as rekindle:
        scene = Scene(rekindle).begin("a")
        with pytest.raises(CommandError, match=point):
            rekindle("sleep", "a")
        scene.goes_on("a")
        assert len(scene.workers("a")) == 2


@pytest.mark.parametrize("point", ["sleep-noted", "sleep-ready"])
def test_all_go_on_if_the_daemon_dies_before_they_sleep(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        scene = Scene(rekindle).begin("a")
        sleep = rekindle.begin("sleep", "a")
        rekindle.reached(point)
        kill_daemon(rekindle)
        with pytest.raises(CommandError):
            sleep.end()
        scene.goes_on("a")
        assert len(scene.workers("a")) == 2 and rekindle.sandbox("a")["state"] == "running"


@pytest.mark.parametrize("point", ["wake-begun", "wake-restored", "wake-adopted", "wake-resumed", "wake-noted", "wake-kept-ended"])
def test_all_wake_though_the_daemon_dies_meanwhile(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        scene = Scene(rekindle).begin("a")
        rekindle("sleep", "a")
        rekindle.reached(point)
        kill_daemon(rekindle)
        del rekindle.environment["REKINDLE_FAULT"]
        rekindle("ps")
        scene.goes_on("a")
        rekindle.wait(lambda: len(scene.workers("a")) == 2, "the end of what kept them")


def contexts(rekindle):
    return {context["pid"] for context in rekindle.json("ps")["contexts"]}


def test_all_are_clients_of_one_shared_context(rekindle):
    scene = Scene(rekindle, 3).begin("a", "--share", "team")
    other = Scene(rekindle, 2).begin("other", "--share", "team")
    (context,) = contexts(rekindle)
    assert set(scene.workers("a")) == set(other.workers("other")) == {context}
    rekindle("checkpoint", "a", "--to", "going", "--leave-running")
    for scene_of, name in ((scene, "a"), (other, "other")):
        scene_of.goes_on(name)
    assert rekindle.json("checkpoint", "a", "--to", "x", "--stop")["gpu_processes"] == 3
    before = scene.steps("a")
    # With the others again, alone, and with others once it was alone.
    rekindle("restore", "x", "--name", "b", "--share", "team", "--gpu", rekindle.gpu, "-d")
    scene.follows("b", before)
    assert set(scene.workers("b")) == {context}
    rekindle.restore("x", "c")
    scene.follows("c", before)
    assert context not in scene.workers("c") and len(scene.workers("c")) == 3
    rekindle("sleep", "c")
    scene.goes_on("c")
    rekindle("shutdown")
    rekindle("checkpoint", "c", "--to", "y", "--stop")
    before = scene.steps("c")
    rekindle("kill", "b")
    rekindle("restore", "y", "--name", "d", "--share", "team", "--gpu", rekindle.gpu, "-d")
    scene.follows("d", before)
    assert set(scene.workers("d")) == {context}
    other.goes_on("other")
    # A second instance of the same addresses finds no room there.
    rekindle("restore", "y", "--name", "e", "--share", "team", "--gpu", rekindle.gpu, "-d")
    scene.follows("e", before)
    assert context not in scene.workers("e") and len(set(scene.workers("e"))) == 1


def test_shared_memory_of_programs_in_a_shared_context_comes_back(rekindle):
    scene = Relays(rekindle, 3).begin("a", "--share", "team")
    (context,) = contexts(rekindle)
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    before = scene.steps("a")
    rekindle("restore", "x", "--name", "b", "--share", "team", "--gpu", rekindle.gpu, "-d")
    scene.follows("b", before)
    assert set(rekindle.sandbox("b")["workers"]) == {context}


@pytest.mark.parametrize("point", ["quiesced", "saved"])
def test_a_shared_context_that_ends_in_a_checkpoint_is_named(point):
    with Rekindle(REKINDLE_FAULT=f"{point}:hang") as rekindle:
        Scene(rekindle).begin("a", "--share", "team")
        (context,) = contexts(rekindle)
        checkpoint = rekindle.begin("checkpoint", "a", "--to", "x", "--stop")
        rekindle.reached(point)
        os.kill(context, signal.SIGKILL)
        rekindle.let_go(point)
        with pytest.raises(CommandError, match="the GPU worker ended while it was to"):
            checkpoint.end()
        assert rekindle.json("images")["images"] == []
        rekindle.wait_end("a")
        rekindle.wait(lambda: contexts(rekindle) == set(), "nothing to be left")


def test_a_restore_into_a_shared_context_that_ends_begins_again():
    with Rekindle(REKINDLE_FAULT="restore-complete:hang") as rekindle:
        scene = Scene(rekindle).begin("a", "--share", "team")
        (context,) = contexts(rekindle)
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        before = scene.steps("a")
        restore = rekindle.begin("restore", "x", "--name", "b", "--share", "team", "-d")
        rekindle.reached("restore-complete")
        os.kill(context, signal.SIGKILL)
        rekindle.let_go("restore-complete")
        restore.end()
        scene.follows("b", before)
        assert len(set(scene.workers("b"))) == 1


def test_the_next_daemon_knows_all_of_them(rekindle):
    scene = Scene(rekindle).begin("a")
    rekindle("shutdown")
    assert len(scene.workers("a")) == 2
    rekindle("checkpoint", "a", "--to", "x", "--stop")
    before = scene.steps("a")
    rekindle.restore("x", "b")
    rekindle("shutdown")
    scene.follows("b", before)


def test_a_program_that_is_taken_at_intervals_comes_back_with_all_of_them(rekindle):
    scene = Scene(rekindle).begin("a", "--every", "1s", "--restart", "on-failure")
    rekindle.wait(lambda: rekindle.sandbox("a")["recovery"]["images"], "an image")
    pid = rekindle.sandbox("a")["pid"]
    os.kill(pid, signal.SIGKILL)
    rekindle.wait(lambda: rekindle.sandbox("a")["pid"] not in (0, pid), "its return")
    scene.goes_on("a")
    assert len(scene.workers("a")) == 2


def test_a_restore_takes_as_many_workers_as_wait():
    with Rekindle(REKINDLE_POOL="3") as rekindle:
        scene = Scene(rekindle, 3).begin("a")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        before = scene.steps("a")

        def waiting():
            return {worker["pid"] for worker in rekindle.json("ps")["pool"] if worker["ready"]}

        rekindle.wait(lambda: len(waiting()) == 3, "workers that wait")
        ready = waiting()
        rekindle.restore("x", "b")
        assert set(scene.workers("b")) == ready
        scene.follows("b", before)


def test_in_a_network_of_its_own(rekindle):
    scene = Scene(rekindle).begin("a", "--network", "private")
    rekindle("checkpoint", "a", "--to", "x", "--stop", "--prove")
    before = scene.steps("a")
    rekindle.restore("x", "b")
    scene.follows("b", before)


def test_each_half_is_cached_and_learned_of_by_itself():
    with Rekindle(REKINDLE_HOST_CACHE="64M", REKINDLE_GPU_CACHE="64M") as rekindle:
        scene = Scene(rekindle).begin("a")
        rekindle("checkpoint", "a", "--to", "x", "--stop")
        before = scene.steps("a")

        def cached():
            (image,) = rekindle.json("images")["images"]
            return image["cached_bytes"]["host"], *image["cached_bytes"]["gpus"].values()

        def all_cached():
            return cached() == (4 << 20, 4 << 20)

        rekindle.wait(all_cached, "both halves in the caches")
        for name in ("b", "c"):
            rekindle.restore("x", name)
            scene.follows(name, before)
        learned = rekindle.state / "store/images/x"
        rekindle.wait(lambda: len(list(learned.glob("half@*/load-order.json"))) == 2, "what was learned of both")
        rekindle("kill", "b", "c")
        rekindle("verify", "x")
        rekindle.restore("x", "d")
        scene.follows("d", before)
        rekindle("rmi", "x")
        scene.goes_on("d")
        assert rekindle.json("images")["images"] == []
