"""What CRIU does not keep of a program, and Rekindle does: set up, checkpoint, stop, restore, verify. Or it is refused by name."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rekindle import CommandError, Rekindle, processes

PROGRAMS = Path(__file__).parent / "kept"


class Native:
    """A program that Rekindle has not started."""

    def __init__(self, rekindle, script, *arguments):
        command = [sys.executable, PROGRAMS / script, rekindle.root / "go", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        assert self.process.stdout.readline() == b"ready\n"
        proc = Path(f"/proc/{self.process.pid}")
        mapped = [line.split() for line in (proc / "maps").read_text().splitlines() if "/dev/shm/" in line]
        opened = [link.stat() for link in (proc / "fd").iterdir() if str(link.readlink()).startswith("/dev/shm/")]
        self.shared = {int(words[4]) for words in mapped} | {found.st_ino for found in opened}

    def __enter__(self):
        return self.process.pid

    def __exit__(self, *_):
        subprocess.run(["pkill", "-9", "--session", str(self.process.pid)], check=False)
        self.process.wait()
        for left in Path("/dev/shm").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if left.lstat().st_ino in self.shared:
                    left.unlink()
        for table, option in (("sem", "-s"), ("shm", "-m"), ("msg", "-q")):
            for line in Path(f"/proc/sysvipc/{table}").read_text().splitlines()[1:]:
                key, number, _, _, creator = line.split()[:5]
                if int(key) == self.process.pid | 0x4B000000 or (table == "shm" and int(creator) == self.process.pid):
                    # One that goes with its last process may be gone meanwhile.
                    subprocess.run(["ipcrm", option, number], stderr=subprocess.DEVNULL, check=False)


def needs_processor(feature):
    if feature not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"the processor has no {feature}")


def survives(rekindle, script, *arguments, native=False):
    """Through a checkpoint while it goes on, one at which it ends, and one of what was restored; all warnings, and all lines."""
    go, warnings = rekindle.root / "go", []

    def checkpoint(source, image, how):
        warnings.extend(rekindle.json("checkpoint", *source, "--to", image, how)["warnings"])

    def take(source):
        checkpoint(source, "running", "--leave-running")
        checkpoint(source, "stopped", "--stop")

    if native:
        with Native(rekindle, script, *arguments) as pid:
            take(["--pid", pid])
    else:
        rekindle.run("first", sys.executable, PROGRAMS / script, go, *arguments)
        assert rekindle.wait_lines("first", 1)[:1] == ["ready"], rekindle.lines("first")
        take(["first"])
    restored = {"a": "running", "b": "stopped", "c": "stopped", "d": "again"}
    for name, image in restored.items():
        rekindle("verify", image)
        warnings += rekindle.restore(image, name)["warnings"]
        if name == "c":
            checkpoint(["c"], "again", "--leave-running")
    go.touch()
    lines = []
    for name in restored:
        # Instances of one image share files outside: the first to end may have removed them.
        assert "ok" in rekindle.wait_end(name), (name, rekindle.lines(name))
        lines += rekindle.lines(name)
    return warnings, lines


@pytest.mark.parametrize("native", [False, True], ids=["sandbox", "driver"])
def test_files_that_have_lost_the_name_they_were_opened_by(rekindle, native):
    place = rekindle.root / "place"
    (place / "elsewhere").mkdir(parents=True)
    survives(rekindle, "lost_names.py", place, native=native)
    assert sorted(path.name for path in place.rglob("*")) == ["elsewhere", "library", "result"]


@pytest.mark.parametrize("native", [False, True], ids=["sandbox", "driver"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_semaphores_of_processes_that_were_not_forked(rekindle, method, native):
    survives(rekindle, "spawned.py", method, native=native)


def test_system_v_objects_are_the_sandbox_s_own(rekindle):
    survives(rekindle, "sysv.py")


def test_system_v_objects_of_the_machine_are_refused_by_name(rekindle):
    with Native(rekindle, "sysv.py") as pid:
        with pytest.raises(CommandError, match=f"process {pid} uses .* of System V"):
            rekindle("checkpoint", "--pid", pid, "--to", "image", "--stop")
        assert "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize("native", [False, True], ids=["sandbox", "driver"])
def test_sets_of_epoll_go_on_telling_of_timers(rekindle, native):
    survives(rekindle, "timers.py", native=native)


@pytest.mark.parametrize("native", [False, True], ids=["sandbox", "driver"])
def test_tile_registers_of_processors(rekindle, native):
    needs_processor("amx_int8")
    survives(rekindle, "compiled.py", "tiles", "-mamx-tile", "-mamx-int8", native=native)


@pytest.mark.parametrize("native", [False, True], ids=["sandbox", "driver"])
def test_protection_keys_of_memory(rekindle, native):
    needs_processor("ospke")
    survives(rekindle, "compiled.py", "keys", native=native)


@pytest.mark.parametrize("native", [False, True], ids=["sandbox", "driver"])
def test_calls_that_wait_go_on_as_if_nothing_had_been(rekindle, native):
    # Without a sandbox nobody knows at the second image which calls go on that wait for a time.
    survives(rekindle, "compiled.py", "waits", *(["-DUNTIL"] if native else []), native=native)


def test_a_call_ends_when_its_time_is_over_whatever_images_were_taken_meanwhile(rekindle):
    (rekindle.root / "go").touch()
    rekindle.run("first", sys.executable, PROGRAMS / "compiled.py", rekindle.root / "go", "signalled")
    rekindle.wait_lines("first", 1)
    for number in range(3):
        time.sleep(0.4)
        rekindle("checkpoint", "first", "--to", f"image-{number}", "--leave-running")
    (_, waited) = rekindle.wait_end("first")
    # Begun anew at the last image it would wait for more than a second longer.
    assert 8000 <= int(waited) < 9000


def test_a_signal_that_comes_while_an_image_is_taken_interrupts_a_call():
    with Rekindle(REKINDLE_FAULT="frozen:hang") as rekindle:
        rekindle.run("first", sys.executable, PROGRAMS / "compiled.py", rekindle.root / "go", "signalled")
        rekindle.wait_lines("first", 1)
        time.sleep(0.2)
        begun = rekindle.begin("checkpoint", "first", "--to", "image", "--leave-running")
        rekindle.reached("frozen")
        os.kill(rekindle.sandbox("first")["pid"], signal.SIGUSR1)
        rekindle.let_go("frozen")
        begun.end()
        assert rekindle.wait_end("first") == ["ready", "interrupted"]


# What no image keeps. CRIU before 4.2 lacks one thing more.
LOST = {("first thread", "memory policy"), ("second thread", "memory policy"), ("process", "policy of memory"), ("process", "personality")}
LOST_BEFORE_4_2 = {("process", "memory wiped in children")}


@pytest.mark.parametrize("native", [False, True], ids=["sandbox", "driver"])
def test_what_the_kernel_has_of_threads_and_processes(rekindle, native):
    warnings, lines = survives(rekindle, "state.py", rekindle.root / "locked", native=native)
    differing = {tuple(json.loads(line)[:2]) for line in lines if line.startswith("[")}
    assert differing - LOST_BEFORE_4_2 == LOST, [line for line in lines if line.startswith("[")]
    for what in ("personality", "memory policy"):
        assert any(f"{what} (" in warning for warning in warnings), warnings


# Gives two threads a processor each; a third one has all.
PINNED = """
import os, threading, time
here = sorted(os.sched_getaffinity(0))
def stay(name, cpus):
    if cpus != here:
        os.sched_setaffinity(0, cpus)
    while True:
        os.write(1, f"{name} {sorted(os.sched_getaffinity(0))}\\n".encode())
        time.sleep(0.02)
for name, cpus in ("first", here[:1]), ("second", here[1:2]), ("all", here):
    threading.Thread(target=stay, args=[name, cpus]).start()
"""


def test_each_thread_keeps_its_processors(rekindle):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a machine of one processor")
    here = sorted(os.sched_getaffinity(0))
    expected = {f"first [{here[0]}]", f"second [{here[1]}]", f"all {here}"}
    said = lambda name: set(rekindle.lines(name))
    rekindle.run("pinned", sys.executable, "-c", PINNED)
    rekindle.wait(lambda: said("pinned") == expected, "all threads to have their processors")
    # While a program is dumped its threads have one processor now and then.
    for number in range(5):
        rekindle("checkpoint", "pinned", "--to", f"image-{number}", "--leave-running")
    before = len(rekindle.lines("pinned"))
    rekindle.wait_lines("pinned", before + 30)
    assert said("pinned") == expected
    rekindle("checkpoint", "pinned", "--to", "image", "--stop")
    for image in "image-0", "image-4", "image":
        assert rekindle.restore(image, f"of-{image}")["warnings"] == []
        # Who waits longest for a processor says something too.
        rekindle.wait(lambda name=f"of-{image}": len(said(name)) > 2, "all threads")
        assert said(f"of-{image}") == expected
        rekindle("kill", f"of-{image}")


WRITER = """
import os, sys, time
place = sys.argv[1]
fd = os.open(place + "/new", os.O_RDWR | os.O_CREAT)
os.link(place + "/new", place + "/elsewhere/result")
os.unlink(place + "/new")
n = 0
while True:
    print(n, flush=True)
    n += 1
    time.sleep(0.02)
"""


def test_a_file_that_would_be_another_one_is_refused_by_name(rekindle):
    place = rekindle.root / "place"
    (place / "elsewhere").mkdir(parents=True)
    rekindle.run("writer", sys.executable, "-c", WRITER, place)
    before = len(rekindle.wait_lines("writer", 1))
    with pytest.raises(CommandError, match=f"opened as {place}/new, which has lost that name"):
        rekindle("checkpoint", "writer", "--to", "image", "--stop")
    rekindle.wait_lines("writer", before + 3)
    assert not rekindle.json("images")["images"]
    # With a name beside the old one all is well.
    (place / "found").hardlink_to(place / "elsewhere/result")
    rekindle("checkpoint", "writer", "--to", "image", "--stop")
    rekindle.restore("image", "again")
    rekindle.wait_lines("again", 1)
    assert sorted(path.name for path in place.iterdir()) == ["elsewhere", "found"]


def test_a_program_is_brought_back_on_one_processor_before_others_and_runs_as_it_did():
    mark = f"brought-back-{os.getpid()}"
    program = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nprint('ready', flush=True)\ntime.sleep(1000)"
    )
    with Rekindle(REKINDLE_FAULT="restore-complete:hang") as rekindle:
        rekindle.run("first", sys.executable, "-c", program, mark)
        rekindle.wait_lines("first", 1)
        rekindle("checkpoint", "first", "--to", "image", "--stop")
        restore = rekindle.begin("restore", "image", "--name", "second", "-d")
        rekindle.reached("restore-complete")
        (pid,) = processes(mark)
        threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
        scheduled = lambda: {(os.getpriority(os.PRIO_PROCESS, thread), frozenset(os.sched_getaffinity(thread))) for thread in threads}
        ((nice, processors),) = scheduled()
        assert len(threads) == 2 and nice == -20 and len(processors) == 1
        # A class without a bound could keep all others from their processors.
        assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_OTHER}
        rekindle.let_go("restore-complete")
        restore.end()
        assert scheduled() == {(os.getpriority(os.PRIO_PROCESS, 0), frozenset(os.sched_getaffinity(0)))}
