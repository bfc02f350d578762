"""What must be refused, with one sentence, and what must survive it."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interleavings import machine
from rekindle import PATIENCE, ROOT, CommandError, Rekindle, below
from training.pace import Pace

STEPS = 60
OPTIONS = ["--rows", 8, "--hidden", 8, "--steps", STEPS, "--pause", 0.05]
# It waits there until it is told to end.
LAST = STEPS - 5


def refused(rekindle, *arguments):
    """The one sentence with which the command is refused."""
    with pytest.raises(CommandError) as error:
        rekindle(*arguments)
    message = error.value.message
    assert error.value.code == 1 and message.count("\n") == 0, message
    assert message.startswith("rekindle: ") and "panicked" not in message, message
    return message


@pytest.fixture(scope="module")
def source():
    """A Rekindle with one image of a training run, never changed: tests copy its state."""
    with Rekindle() as rekindle:
        pace = Pace(rekindle, 10)
        rekindle.run("training", *pace.command(*OPTIONS))
        rekindle.wait_lines("training", 5)
        rekindle("checkpoint", "training", "--to", "image", "--stop")
        pace.end()
        path = Path(rekindle.json("inspect", "image")["path"])
        # Logs of workers that wait come and go else while it is copied.
        rekindle("shutdown")
        yield rekindle, path


@contextlib.contextmanager
def copied(source):
    """A Rekindle of one's own with a copy of the image."""
    original, path = source
    with Rekindle() as rekindle:
        # Holes stay holes: page files are long and nearly empty.
        subprocess.run(["cp", "-a", "--sparse=always", original.root / "state", rekindle.root], check=True)
        shutil.rmtree(rekindle.root / "state/sandboxes")
        yield rekindle, rekindle.root / path.relative_to(original.root)


@pytest.fixture
def copy(source):
    with copied(source) as both:
        yield both


@pytest.fixture(scope="module")
def undamaged(source):
    """What a program says that is restored from an undamaged copy."""
    with copied(source) as (rekindle, _):
        rekindle("verify", "image")
        rekindle.restore("image", "restored")
        return rekindle.wait_end("restored")


def files(path):
    """Every file that belongs to the image, chunks too."""
    store = next(p for p in path.parents if (p / "chunks").is_dir())
    return [p for folder in (path, store / "chunks") for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_size]


def flip(victim, rng):
    """Changes one bit of what is in the file, not of its holes."""
    victim.chmod(0o600)
    with victim.open("r+b", buffering=0) as file:
        spans, end = [], 0
        while end < victim.stat().st_size:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            spans.append(range(start, end))
        place = rng.choice(rng.choices(spans, [len(span) for span in spans])[0])
        byte = os.pread(file.fileno(), 1, place)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << rng.randrange(8)]), place)


def test_an_undamaged_copy_is_restored(undamaged):
    assert undamaged[-1] == "done"


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_byte_anywhere_is_found(copy, seed, undamaged):
    rekindle, path = copy
    rng = random.Random(seed)
    flip(rng.choice(files(path)), rng)
    refused(rekindle, "verify", "image")
    try:
        rekindle.restore("image", "restored")
    except CommandError as error:
        assert error.code == 1 and error.message.count("\n") == 0, error.message
    else:
        lines = rekindle.wait_end("restored")
        if lines == undamaged:
            # Code that it does not use again is not waited for, and nothing comes of it.
            return
        # GPU buffers are checked while the program waits for them: it is ended, and saw nothing of it.
        assert not any("loss" in line or line == "done" for line in lines), lines
        problem = rekindle.sandbox("restored")["problem"]
        assert "image" in problem and "damaged" in problem, problem
    assert not any(row["pid"] for row in rekindle.sandboxes())


@pytest.mark.parametrize("seed", range(4))
def test_a_truncated_image_is_found(copy, seed):
    rekindle, path = copy
    victim = random.Random(seed).choice(files(path))
    victim.chmod(0o600)
    os.truncate(victim, victim.stat().st_size // 2)
    refused(rekindle, "verify", "image")
    refused(rekindle, "restore", "image", "-d")


def test_a_missing_chunk_is_found(copy):
    rekindle, path = copy
    chunk = next(p for p in files(path) if "chunks" in p.parts)
    chunk.unlink()
    assert "missing" in refused(rekindle, "verify", "image")
    refused(rekindle, "restore", "image", "-d")


def test_a_newer_format_is_refused(copy):
    rekindle, path = copy
    manifest = path / "manifest.json"
    text = json.loads(manifest.read_text())
    text["format"] = 99
    manifest.chmod(0o600)
    manifest.write_text(json.dumps(text))
    message = refused(rekindle, "restore", "image", "-d")
    assert "format" in message and "99" in message


def test_too_little_gpu_memory_is_found_before_anything_is_touched(rekindle):
    code = f"""
import sys, time; sys.path.insert(0, {str(ROOT / "tests/features")!r})
from gpu import call, open_device
open_device()
buffer = call("cuMemAlloc", 100 << 20)
print("ready", flush=True)
while True: time.sleep(.01)
"""
    rekindle.run("large", sys.executable, "-c", code)
    assert rekindle.wait_lines("large", 1) == ["ready"]
    rekindle("checkpoint", "large", "--to", "image", "--stop")
    message = refused(rekindle, "restore", "image", "--gpu", "emulated:memory=64M", "-d")
    assert "GPU memory" in message and "100 MB" in message and "64 MB" in message, message
    assert not any(row["pid"] for row in rekindle.sandboxes())
    rekindle("restore", "image", "--gpu", "emulated:memory=128M", "-d")


def test_another_model_of_gpu_is_refused(copy):
    rekindle, _ = copy
    message = refused(rekindle, "restore", "image", "--gpu", "emulated:sms=8", "-d")
    assert "16 SMs" in message and "8 SMs" in message, message
    assert not any(row["pid"] for row in rekindle.sandboxes())


def test_a_gpu_that_is_not_there_is_refused(copy):
    rekindle, _ = copy
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has the GPU that the test wants absent")
    refused(rekindle, "restore", "image", "--gpu", "nvidia", "-d")
    refused(rekindle, "run", "--gpu", "nvidia", "-d", "--", "true")
    refused(rekindle, "run", "--gpu", "quantum", "-d", "--", "true")


def test_a_mapped_file_that_changed_or_is_gone_is_named(rekindle):
    library = rekindle.root / "libmapped.so"
    source = rekindle.root / "mapped.c"
    build = lambda number: os.system(f"echo 'int f(void) {{ return {number}; }}' > {source} && cc -shared -Wl,--build-id -o {library} {source}") == 0
    assert build(1)
    code = f"import ctypes, time\nf = ctypes.CDLL({str(library)!r}).f\nprint(f(), flush=True)\nwhile True: time.sleep(.01)"
    rekindle.run("mapped", sys.executable, "-c", code)
    assert rekindle.wait_lines("mapped", 1) == ["1"]
    rekindle("checkpoint", "mapped", "--to", "image", "--stop")
    library.unlink()
    assert str(library) in refused(rekindle, "restore", "image", "-d")
    assert build(2)
    assert str(library) in refused(rekindle, "restore", "image", "-d")
    library.unlink()
    assert build(1)


def test_names(rekindle):
    rekindle.run("taken", "sleep", "infinity")
    assert "taken" in refused(rekindle, "run", "-d", "--name", "taken", "--", "true")
    for command in (("logs", "nobody"), ("kill", "nobody"), ("checkpoint", "nobody", "--to", "x", "--stop")):
        assert "nobody" in refused(rekindle, *command)
    for command in (("inspect", "nothing"), ("verify", "nothing"), ("rmi", "nothing"), ("rm", "nothing"), ("restore", "nothing")):
        assert "nothing" in refused(rekindle, *command)
    rekindle("checkpoint", "taken", "--to", "image", "--leave-running")
    assert "image" in refused(rekindle, "checkpoint", "taken", "--to", "image", "--leave-running")


@pytest.mark.parametrize("name", ["a/b", "../up", "..", ".", "$(touch x)", "a b;c|d&e", "'\"`", "%2e%2e", "*?[", "ünï😀", "-dash", "n" * 255])
def test_any_name_is_only_a_name(rekindle, name):
    rekindle("run", "-d", f"--name={name}", "--", "sh", "-c", "echo here; sleep infinity")
    rekindle.wait(lambda: rekindle("logs", "--", name).strip() == "here", "the first line")
    rekindle("checkpoint", "--stop", f"--to={name}", "--", name)
    assert [image["name"] for image in rekindle.json("images")["images"]] == [name]
    rekindle("rmi", "--", name)
    assert rekindle.json("images")["images"] == []


def test_the_records_of_ten_thousand_sandboxes_hold_nothing_up(rekindle):
    """As a machine that was never tidied has them: all names of one command, some of sandboxes that a crash left as running."""
    rekindle("run", "--", "true")
    rekindle("shutdown")
    records = rekindle.state / "sandboxes"
    (first,) = records.glob("*.json")
    record = json.loads(first.read_text())
    for number in range(10_000):
        of = {**record, "id": f"{number:016x}", "name": f"true-{number + 1}", "state": "exited" if number % 100 else "running", "pid": 0}
        (records / f"{of['id']}.json").write_text(json.dumps(of))
    assert len(rekindle.sandboxes()) <= 100
    assert len(list(records.glob("*.json"))) <= 100
    names = {rekindle("run", "-d", "--", "sleep", "infinity").strip() for _ in range(3)}
    assert len(names) == 3
    assert names == {row["name"] for row in rekindle.sandboxes() if row["pid"]}


def test_a_dead_worker_is_an_error_in_the_program_alone(rekindle):
    pace = Pace(rekindle, LAST)
    for name in ("victim", "other"):
        rekindle.run(name, *pace.command(*OPTIONS))
        rekindle.wait_lines(name, 3)
    (victim,), (other,) = (rekindle.sandbox(name)["workers"] for name in ("victim", "other"))
    assert victim != other
    os.kill(victim, signal.SIGKILL)
    pace.end()
    assert "done" not in rekindle.wait_end("victim") and rekindle.wait_end("other")[-1] == "done"
    assert any("worker" in line for line in rekindle.lines("victim")), rekindle.lines("victim")[-5:]
    rekindle.run("next", *pace.command(*OPTIONS))
    assert rekindle.wait_end("next")[-1] == "done"


def workers(rekindle):
    """Pids of this Rekindle's workers, also of those that wait for a sandbox."""
    of_it = machine.processes_of(rekindle).items()
    return {pid for pid, words in of_it if words[0].endswith("rekindled") and words[1:2] == ["worker"]}


def test_a_killed_program_leaves_no_worker(rekindle):
    """None but those that wait, of which one may be that which it had."""
    rekindle.run("victim", *Pace(rekindle, LAST).command(*OPTIONS))
    rekindle.wait_lines("victim", 3)
    victim = rekindle.sandbox("victim")
    (worker,) = victim["workers"]
    assert worker in workers(rekindle)
    os.kill(victim["pid"], signal.SIGKILL)
    rekindle.wait_end("victim")
    rekindle.wait(lambda: workers(rekindle) == {spare["pid"] for spare in rekindle.json("ps")["pool"]}, "the worker's end")


def test_a_function_that_is_not_implemented_is_named(rekindle):
    code = "import ctypes\nc = ctypes.CDLL('libcuda.so.1')\nc.cuInit(0)\nprint(c.cuMulticastCreate(0, 0), flush=True)\nprint(c.cuMulticastCreate(0, 0), flush=True)"
    rekindle.run("program", sys.executable, "-c", code)
    lines = rekindle.wait_end("program")
    assert lines.count("801") == 2
    assert sum("cuMulticastCreate" in line for line in lines) == 1


def test_an_unknown_ptx_instruction_is_named_with_its_line(rekindle):
    ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n  frobnicate.u32 %r1;\n  ret;\n}\n"
    code = f"""
import sys; sys.path.insert(0, {str(ROOT / "tests/features")!r})
from cuda.bindings import driver
from gpu import open_device
open_device()
log = bytearray(4096)
options = [driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
code = driver.cuModuleLoadDataEx({ptx.encode()!r}, 2, options, [log, len(log)])[0]
print(code.value, log.split(b"\\0")[0].decode().replace("\\n", " "))
"""
    rekindle.run("program", sys.executable, "-c", code)
    line = rekindle.wait_end("program")[-1]
    assert line.startswith("218 ") and "frobnicate" in line and "6" in line, line


@pytest.mark.parametrize("moment", ["checkpoint", "restore"])
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3])
def test_a_killed_daemon_loses_nothing(rekindle, moment, delay):
    """SIGKILL in the middle: what ran goes on, nothing half-done remains, the next daemon says what happened."""
    pace = Pace(rekindle, LAST)
    rekindle.run("training", *pace.command(*OPTIONS))
    rekindle.wait_lines("training", 3)
    if moment == "restore":
        rekindle("checkpoint", "training", "--to", "image", "--leave-running")
        command = ["restore", "image", "--name", "restored", "-d"]
    else:
        command = ["checkpoint", "training", "--to", "image", "--leave-running"]
    running = subprocess.Popen([rekindle.command, *command], env=rekindle.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(delay)
    kill_daemon(rekindle)
    _, complaint = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0 or complaint.count("\n") == 1, complaint
    assert rekindle.sandbox("training")["pid"]
    pace.end()
    lines = rekindle.wait_end("training")
    assert lines[-1] == "done" and len(lines) == STEPS + 1, lines[-3:]
    for image in rekindle.json("images")["images"]:
        rekindle("verify", image["name"])
    assert not [path for path, _ in below(rekindle.state) if path.parent.parent.name == "staging"]
    for row in rekindle.sandboxes():
        assert row["name"] == "training" or not row["pid"] or rekindle.wait_end(row["name"])[-1] == "done"
    rekindle("checkpoint", "training", "--to", "later", "--stop", check=False)


def kill_daemon(rekindle):
    processes = machine.processes_of(rekindle).items()
    daemons = [pid for pid, words in processes if words[0].endswith("rekindled") and words[1:2] == ["--background"]]
    for pid in daemons:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # Its first thread is dead before its socket is closed.
    are_closed = lambda: not any(machine.is_alive(pid) or machine.threads(pid)[1:] for pid in daemons)
    rekindle.wait(are_closed, "the daemon's end")


def log_of_the_only_program(rekindle):
    """Where it can be read without a daemon."""
    (log,) = (path for path in (rekindle.state / "logs").glob("*.log") if path.name.count(".") == 1 and "pool" not in path.name)
    return log


def test_a_program_that_comes_to_the_admission_socket_between_two_daemons_waits(rekindle):
    go, bump = rekindle.root / "go", ROOT / "crates/cli/tests/programs/bump.py"
    rekindle.run("late", "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.01; done; exec {sys.executable} {bump} 3")
    log = log_of_the_only_program(rekindle)
    kill_daemon(rekindle)
    go.touch()
    rekindle.wait(lambda: "waiting up to 10 s for the next one" in log.read_text(), "the program to wait")
    assert rekindle.wait_end("late")[-3:] == ["1", "2", "3"]


def test_a_process_that_comes_as_the_next_daemon_starts_takes_nothing_from_the_others(rekindle):
    go, bump = rekindle.root / "go", ROOT / "crates/cli/tests/programs/bump.py"
    rekindle.run("two", "sh", "-c", f"{sys.executable} {bump} & while [ ! -e {go} ]; do sleep 0.01; done; exec {sys.executable} {bump}")
    rekindle.wait_lines("two", 3)
    log = log_of_the_only_program(rekindle)
    kill_daemon(rekindle)
    rekindle.environment["REKINDLE_FAULT"] = "workers-sought:hang"
    asks = rekindle.begin("ps")
    rekindle.reached("workers-sought")
    go.touch()
    rekindle.wait(lambda: "no daemon runs" in log.read_text(), "the second one to wait for a daemon")
    rekindle.let_go("workers-sought")
    asks.end()
    rekindle.wait(lambda: len(rekindle.sandbox("two")["workers"]) == 2, "both to have workers")
    assert rekindle.sandbox("two")["problem"] is None
    rekindle("checkpoint", "two", "--to", "image", "--stop")
    rekindle.restore("image", "again")
    assert len(rekindle.sandbox("again")["workers"]) == 2


@pytest.mark.parametrize("mebibytes", [1, 6, 12, 16, 20, 23, 26])
def test_a_full_disk_undoes_the_checkpoint_in_every_phase(rekindle, mebibytes):
    """A real file system with so much room and no more: the checkpoint fails with one sentence, the program goes on."""
    state = rekindle.root / "state"
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0700", "rekindle-test", state], check=True)
    try:
        pace = Pace(rekindle, LAST)
        rekindle.run("training", *pace.command(*OPTIONS))
        rekindle.wait_lines("training", 3)
        for end in ("--stop", "--leave-running"):
            message = refused(rekindle, "checkpoint", "training", "--to", "image", end)
            assert "full" in message or "space" in message, message
            assert rekindle.json("images")["images"] == []
            assert bytes_in(state) < 1 << 19
        pace.end()
        lines = rekindle.wait_end("training")
        assert lines[-1] == "done" and len(lines) == STEPS + 1
    finally:
        rekindle("shutdown", check=False)
        subprocess.run(["umount", "--lazy", state], check=True)


def bytes_in(state):
    return sum(found.st_blocks * 512 for _, found in below(state))


@pytest.mark.parametrize("bytes", [0, 1000, 10_000])
def test_a_full_disk_under_the_gpu_half_undoes_the_checkpoint(bytes):
    """The GPU half meets the end of the disk while CRIU has room."""
    with Rekindle(REKINDLE_FAULT=f"disk:{bytes}") as rekindle:
        pace = Pace(rekindle, LAST)
        rekindle.run("training", *pace.command(*OPTIONS))
        rekindle.wait_lines("training", 3)
        message = refused(rekindle, "checkpoint", "training", "--to", "image", "--stop")
        assert "full" in message or "space" in message, message
        assert rekindle.json("images")["images"] == []
        pace.end()
        lines = rekindle.wait_end("training")
        assert lines[-1] == "done" and len(lines) == STEPS + 1


def test_a_program_that_prints_goes_on_when_the_disk_is_full(rekindle):
    """What does not fit is lost and counted, and nothing else happens; so with what the daemon has to say."""
    state, steps = rekindle.root / "state", rekindle.root / "steps"
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "rekindle-test", state], check=True)
    try:
        code = f"import time\nfor n in range(10**9):\n    print('x' * 1000, n, flush=True)\n    open({str(steps)!r}, 'w').write(str(n))\n    time.sleep(0.001)"
        rekindle.run("prints", sys.executable, "-c", code)
        stepped = lambda: int(steps.read_text() or 0) if steps.exists() else 0
        rekindle.wait(lambda: stepped() > 10, "the first lines")
        fill = state / "fill"
        with contextlib.suppress(OSError), fill.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        full = stepped()
        # More than waits for a log that nobody comes to write, so that much of it is lost by now.
        rekindle.wait(lambda: stepped() > full + 1500, "it to print on a full disk")
        assert rekindle.sandbox("prints")["pid"]
        fill.unlink()

        def found():
            """What the log says of the loss, and which lines are there after that."""
            lines = rekindle.lines("prints")
            told = [number for number, line in enumerate(lines) if "bytes of output are lost here" in line]
            later = lines[told[-1] :] if told else []
            return [lines[number] for number in told], [int(line.split()[1]) for line in later if line.startswith("x" * 1000 + " ")]

        rekindle.wait(lambda: len(found()[1]) > 3, "the loss to be told of, and it to go on")
        told, numbers = found()
        assert all("No space left on device" in line for line in told), told
        assert sum(int(line.split()[1]) for line in told) > 400_000, told
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    finally:
        rekindle("kill", "prints", check=False)
        rekindle("shutdown", check=False)
        subprocess.run(["umount", "--lazy", state], check=True)
