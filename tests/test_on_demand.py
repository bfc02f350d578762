"""GPU buffers on demand: whatever a kernel reaches before it is loaded, the program's results are those of the uninterrupted run."""

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from interleavings import machine
from rekindle import CommandError, Rekindle
from test_bad_input import kill_daemon

PROGRAM = Path(__file__).parent / "on_demand/chase.py"
KINDS = ["hidden", "named", "graph", "threads", "say", "count", "bad"]
ORDERS = ["none", "default", "profile", "worst"]
# How kernels find memory and in which order it comes matter to each other where many buffers are reached.
ARRIVALS = [(kind, order) for kind in KINDS for order in ORDERS if kind in ("hidden", "named") or order in ("default", "worst")]
# Buffers arrive over a second or so, once they may.
SLOW = {"REKINDLE_EMULATED": "bandwidth=24M", "REKINDLE_FAULT": "loading-begun:hang"}


def start(rekindle, kind):
    rekindle.run(kind, sys.executable, PROGRAM, kind, rekindle.root / "go")
    assert rekindle.wait_lines(kind, 1)[:1] == ["ready"], rekindle.lines(kind)


def go(rekindle):
    (rekindle.root / "go").touch()


def set_environment(rekindle, **variables):
    """For the daemon and the workers that come next."""
    rekindle("shutdown")
    rekindle.environment.update(variables)


def phases(rekindle, name):
    """Of the restore, once all is loaded."""

    def found():
        trace = rekindle.json("trace", name, "--svg", rekindle.root / "picture.svg")["traces"][-1]
        return [phase["name"] for phase in trace["phases"]]

    rekindle.wait(lambda: "GPU memory" in found(), "the buffers")
    return found()


def restore(rekindle, name, order):
    """Its buffers arrive once they may, [`load`]."""
    rekindle.hold_again("loading-begun")
    return rekindle.json("restore", "image", "--name", name, "--gpu", rekindle.gpu, "--order", order, "-d")


def ahead(rekindle, name, order="default"):
    """Restores it; all that it launches is launched before any buffer is there."""
    restore(rekindle, name, order)
    rekindle.reached("loading-begun")
    assert rekindle.wait_lines(name, 1) == ["issued"]


def load(rekindle):
    rekindle.let_go("loading-begun")


@pytest.fixture(scope="module")
def images():
    """For each kind a state with an image, made when it is first needed, and what the uninterrupted program prints."""
    made, started = {}, []

    def of(kind):
        if kind not in made:
            rekindle = Rekindle().__enter__()
            started.append(rekindle)
            start(rekindle, kind)
            rekindle("checkpoint", kind, "--to", "image", "--leave-running")
            go(rekindle)
            lines = rekindle.wait_end(kind)
            assert lines[0] == "ready" and lines[-1] == "done", lines
            set_environment(rekindle, **SLOW)
            made[kind] = (rekindle, lines[1:])
        return made[kind]

    yield of
    for rekindle in started:
        rekindle.__exit__()


def in_order(lines):
    """Whether kernels print before or after the program has said that it has issued them is chance."""
    return sorted(lines, key=lambda line: line != "issued")


@pytest.mark.parametrize(("kind", "order"), ARRIVALS)
def test_results_are_those_of_the_uninterrupted_run(images, kind, order):
    rekindle, expected = images(kind)
    name = f"{kind}-{order}"
    ahead(rekindle, name, order)
    load(rekindle)
    assert in_order(rekindle.wait_end(name)) == in_order(expected)
    mended = "a fault mended" in phases(rekindle, name)
    # `named` meets nothing that it did not name; nothing runs ahead where all waits.
    assert mended == (order != "none" and kind != "named"), (kind, order)


def test_one_that_is_killed_while_its_buffers_load_has_no_problem(images):
    rekindle, _ = images("named")

    def directories():
        return set(rekindle.run_root.glob("run/*"))

    before = directories()
    for name in ("killed-1", "killed-2", "killed-3"):
        restore(rekindle, name, "default")
        rekindle.reached("loading-begun")
        load(rekindle)
        rekindle("kill", name)
        rekindle.wait(lambda: directories() <= before, "its end")
        assert (rekindle.sandbox(name)["state"], rekindle.sandbox(name)["problem"]) == ("killed", None)


def test_launches_run_before_all_is_loaded_and_results_wait(images):
    rekindle, expected = images("named")
    ahead(rekindle, "early")
    assert rekindle.lines("early") == ["issued"] and rekindle.sandbox("early")["pid"]
    load(rekindle)
    assert rekindle.wait_end("early") == expected


def niceness(pid):
    """Of each thread, with its name."""
    threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    names = [Path(f"/proc/{pid}/task/{thread}/comm").read_text().strip() for thread in threads]
    return [(name, os.getpriority(os.PRIO_PROCESS, thread)) for name, thread in zip(names, threads, strict=True)]


def test_what_loads_has_a_processor_before_others_and_nobody_else_has(images):
    rekindle, expected = images("named")
    ahead(rekindle, "first")
    sandbox = rekindle.sandbox("first")
    (worker,) = sandbox["workers"]
    loading = [nice for name, nice in niceness(worker) if name == "loading"]
    others = [nice for name, nice in niceness(worker) if name != "loading"]
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert loading == [-10] and min(others) == usual, niceness(worker)
    assert {nice for _, nice in niceness(sandbox["pid"])} == {usual}
    load(rekindle)
    assert rekindle.wait_end("first") == expected


def test_a_fault_is_mended_while_the_daemon_is_gone(images):
    rekindle, expected = images("hidden")
    ahead(rekindle, "alone")
    (pid,) = [row["pid"] for row in rekindle.sandboxes() if row["pid"]]
    kill_daemon(rekindle)
    load(rekindle)
    rekindle.wait(lambda: not machine.is_alive(pid), "the program's end")
    assert rekindle.wait_end("alone") == expected


def test_a_checkpoint_right_after_a_restore_waits(images):
    rekindle, expected = images("hidden")
    ahead(rekindle, "again")
    with ThreadPoolExecutor() as pool:
        checkpoint = pool.submit(rekindle, "checkpoint", "again", "--to", "later", "--leave-running")
        rekindle.wait(lambda: rekindle.sandbox("again")["state"] == "checkpointing", "the checkpoint to begin")
        load(rekindle)
        checkpoint.result()
    assert rekindle.wait_end("again") == expected
    rekindle("verify", "later")
    rekindle("rmi", "later")


def kill_worker(rekindle, name):
    """That of a program whose buffers have not begun to arrive; its pid."""
    rekindle.reached("loading-begun")
    (worker,) = rekindle.sandbox(name)["workers"]
    os.kill(worker, signal.SIGKILL)
    rekindle.wait(lambda: not machine.is_alive(worker), "the worker's end")
    rekindle.hold_again("loading-begun")
    return worker


def without_times(lines):
    return [line for line in lines if not line.startswith("apart")]


@pytest.mark.parametrize("kind", ["named", "hidden", "threads", "streams"])
def test_a_worker_that_is_killed_while_it_loads_is_replaced(images, kind):
    rekindle, expected = images(kind)
    name = f"killed-{kind}"
    ahead(rekindle, name)
    first = kill_worker(rekindle, name)
    load(rekindle)
    lines = rekindle.wait_end(name)
    assert without_times(lines) == without_times(expected)
    assert "a worker replaced" in phases(rekindle, name)
    sandbox = rekindle.sandbox(name)
    assert sandbox["problem"] is None and first not in sandbox["workers"], sandbox


@pytest.mark.parametrize("kills", [2, 3])
def test_a_worker_is_replaced_twice_and_no_more(images, kills):
    rekindle, expected = images("named")
    name = f"killed-{kills}"
    restore(rekindle, name, "none")
    for _ in range(kills):
        kill_worker(rekindle, name)
    load(rekindle)
    lines = rekindle.wait_end(name)
    if kills == 2:
        assert lines == expected
        return
    assert set(lines) <= {"issued"}, lines
    problem = rekindle.sandbox(name)["problem"]
    assert '"image"' in problem and "killed" in problem, problem


def test_a_stream_whose_buffers_are_there_goes_on_while_another_waits(images):
    rekindle, expected = images("streams")
    ahead(rekindle, "apart")
    load(rekindle)
    lines = rekindle.wait_end("apart")
    assert without_times(lines) == without_times(expected)
    assert "a fault mended" not in phases(rekindle, "apart")
    # The other stream comes to its end when a second's load does.
    (apart,) = [int(line.split()[1]) for line in lines if line.startswith("apart")]
    assert apart > 200, lines


@pytest.mark.parametrize("kind", ["named", "hidden"])
def test_a_chunk_that_cannot_be_read_ends_the_program_before_it_saw_a_result(kind):
    with Rekindle() as rekindle:
        start(rekindle, kind)
        rekindle("checkpoint", kind, "--to", "image", "--stop")
        set_environment(rekindle, **SLOW)
        image = Path(rekindle.json("inspect", "image")["path"])
        chunks = [path for path in image.parent.parent.glob("chunks/*/*") if path.stat().st_size > 1 << 20]
        go(rekindle)
        restore(rekindle, "broken", "default")
        # As long as it was, with other contents: known only when it is read.
        for victim in chunks:
            with victim.open("r+b") as file:
                file.seek(4096)
                file.write(b"damage")
        load(rekindle)
        lines = rekindle.wait_end("broken")
        assert set(lines) <= {"issued"}, lines
        problem = rekindle.sandbox("broken")["problem"]
        assert '"image"' in problem, problem


def order_of(image):
    path = Path(image) / "load-order.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_an_order_is_learned_by_itself_by_restores_that_race():
    with Rekindle() as rekindle:
        start(rekindle, "named")
        rekindle("checkpoint", "named", "--to", "image", "--stop")
        go(rekindle)
        (rekindle.root / "go.stay").touch()
        image = rekindle.json("inspect", "image")["path"]
        racing = [threading.Thread(target=rekindle.restore, args=("image", f"racing-{n}")) for n in range(2)]
        [thread.start() for thread in racing]
        [thread.join() for thread in racing]
        rekindle.wait(lambda: order_of(image).get("restores") == 2, "what two restores learn")
        learned = order_of(image)["parts"]
        known = [part["name"] for part in rekindle.json("inspect", "image")["parts"] if part["kind"] == "gpu-buffer"]
        # The program names its large buffers from the last to the first.
        large = [name for name in learned if name in known]
        assert len(large) >= 24 and len(set(large)) == len(large), learned
        assert large[:3] != sorted(large)[:3]
        rekindle("verify", "image")
        # One more, and the order is settled.
        for n, restores in enumerate((3, 3)):
            rekindle.restore("image", f"later-{n}")
            rekindle.wait(lambda n=n: len(rekindle.lines(f"later-{n}")) >= 3, "its first work")
            rekindle.wait(lambda restores=restores: order_of(image)["restores"] == restores, "what it learns")
        assert order_of(image)["parts"] == learned
        rekindle("verify", "image")
        assert sorted(path.name for path in Path(image).glob("load-order*")) == ["load-order.json"]


def test_a_profile_is_kept_with_the_image_and_used():
    with Rekindle() as rekindle:
        start(rekindle, "named")
        rekindle("checkpoint", "named", "--to", "image", "--stop")
        image = Path(rekindle.json("inspect", "image")["path"])
        (rekindle.root / "go.stay").touch()
        request = f'touch {rekindle.root}/go; until {rekindle.command} logs "$REKINDLE_SANDBOX" | grep -q done; do sleep 0.05; done'
        learned = json.loads(rekindle("--json", "profile", "image", "--gpu", "emulated", "--", "sh", "-c", request))
        order = json.loads((image / "load-order.json").read_text())["parts"]
        assert learned["parts"] == order and len(order) >= 24
        assert "restores" not in order_of(image)
        # The program names its large buffers from the last to the first.
        large = [name for name in order if name in {part["name"] for part in rekindle.json("inspect", "image")["parts"]}]
        assert large[:3] != sorted(large)[:3]
        rekindle("verify", "image")
        assert not [row for row in rekindle.sandboxes() if row["pid"]]
        # A request that fails teaches nothing.
        (image / "load-order.json").unlink()
        with pytest.raises(Exception, match="nothing was learned"):
            rekindle("profile", "image", "--gpu", "emulated", "--", "false")
        assert not (image / "load-order.json").exists()
        # What is no order is passed over.
        (image / "load-order.json").write_text("nonsense")
        (rekindle.root / "go.stay").unlink()
        restore(rekindle, "anyway", "profile")
        assert rekindle.wait_end("anyway")[-1] == "done"
        # What was learned on purpose stays.
        (image / "load-order.json").write_text(json.dumps({"parts": order}))
        (rekindle.root / "go.stay").touch()
        restore(rekindle, "more", "profile")
        rekindle.wait_lines("more", 3)
        phases(rekindle, "more")
        rekindle("kill", "more")
        assert order_of(image) == {"parts": order}


def test_gpu_memory_that_another_program_takes_after_the_check_refuses_the_restore():
    with Rekindle() as rekindle:
        start(rekindle, "named")
        rekindle("checkpoint", "named", "--to", "image", "--leave-running")
        go(rekindle)
        expected = rekindle.wait_end("named")[1:]
        set_environment(rekindle, REKINDLE_FAULT="gpu-memory-taken")
        with pytest.raises(CommandError) as refused:
            restore(rekindle, "refused", "default")
        message = refused.value.message
        assert "another program may have taken some" in message and message.count("\n") == 0, message
        assert not [row for row in rekindle.sandboxes() if row["pid"]]
        rekindle.wait(lambda: not list((rekindle.run_root / "run").iterdir()), "an empty run directory")
        rekindle("verify", "image")
        del rekindle.environment["REKINDLE_FAULT"]
        rekindle("shutdown")
        restore(rekindle, "whole", "default")
        assert rekindle.wait_end("whole") == expected


def test_pages_that_a_first_restore_touched_are_in_place_in_the_next_one(rekindle):
    go = rekindle.root / "go"
    rekindle.run("touch", sys.executable, PROGRAM.with_name("touch.py"), go)
    assert rekindle.wait_lines("touch", 1) == ["ready"]
    rekindle("checkpoint", "touch", "--to", "image", "--stop")
    learned = Path(rekindle.json("inspect", "image")["path"]) / "first-pages.json"
    answers = []
    for name in "ab":
        rekindle.restore("image", name)
        if learned.exists():
            anonymous = lambda: int(next(line.split()[1] for line in smaps(rekindle, name) if line.startswith("Anonymous:")))
            rekindle.wait(lambda: anonymous() > 2000 * 4, "memory that nobody has touched yet")
        go.touch()
        answers.append(rekindle.wait_lines(name, 1)[0].split())
        rekindle.wait(learned.exists, "what was touched first")
        rekindle("kill", name)
    (_, faults, result), (_, fewer, same) = answers
    assert result == same
    assert int(faults) >= 2000 and int(fewer) < 1000, answers
    rekindle("verify", "image")
    # It is advice: nothing depends on what it says.
    learned.write_text('{"runs": [{"start": 1, "pages": 18446744073709551615, "written": true}], "restores": 9}')
    rekindle.restore("image", "c")
    go.touch()
    assert rekindle.wait_lines("c", 1)[0].split()[2] == result


def smaps(rekindle, name):
    return Path(f"/proc/{rekindle.sandbox(name)['pid']}/smaps_rollup").read_text().splitlines()
