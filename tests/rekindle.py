"""The command line, driven as a user would, on a state directory of its own."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What is tried; a copy of them goes on being the same while others are built.
BINARIES = Path(os.environ.get("REKINDLE_TEST_BINARIES", ROOT / "target/release"))

# How long anything may take that a test waits for, in seconds.
PATIENCE = 120
# How long processes may take to end after the daemon.
END = 10


def below(*places):
    """All that lies below, and what is known of it. Things come and go meanwhile."""
    for place in places:
        for at, folders, files in os.walk(place):
            for path in (Path(at, name) for name in folders + files):
                try:
                    found = path.lstat()
                except FileNotFoundError:
                    continue
                yield path, found


def criu():
    """Has binaries that lie elsewhere find the CRIU of the sources."""
    place = os.environ.get("REKINDLE_CRIU_DIR") or str(ROOT / ".build" / "criu")
    return {"REKINDLE_CRIU_DIR": place} if Path(place).is_dir() else {}


GIVEN_PORTS = set()


def free_port():
    """For who listens there later: not one of those that the kernel gives to connections meanwhile, nor one of another test's, which
    may not listen yet: each process that runs tests has ports of its own."""
    first = 10_000 + 2_500 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8)
    while True:
        port = random.SystemRandom().randrange(first, first + 2_500)
        if port in GIVEN_PORTS:
            continue
        if len(GIVEN_PORTS) > 1000:
            GIVEN_PORTS.clear()
        GIVEN_PORTS.add(port)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


class CommandError(Exception):
    """A command that failed: its exit code and what it said."""

    def __init__(self, arguments, code, message):
        super().__init__(f"rekindle {' '.join(map(str, arguments))}: exit {code}: {message}")
        self.code, self.message = code, message


class Begun:
    """A command under way."""

    def __init__(self, rekindle, arguments):
        self.arguments = arguments
        command = [rekindle.command, *map(str, arguments)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=rekindle.environment, text=True, **pipes)

    def end(self, limit=PATIENCE):
        """What it said, once it has ended."""
        output, error = self.process.communicate(timeout=limit)
        if self.process.returncode:
            raise CommandError(self.arguments, self.process.returncode, error.strip())
        return output


class ProcessesLeft(AssertionError):
    """Processes that outlive what they were for."""


def processes(*directories):
    """Command lines, by pid, of those that were started with one of these directories in their environment or on their command line."""
    names, found = [os.fsencode(directory) for directory in directories], {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes()
            words = command + (path / "environ").read_bytes()
            # What has ended in between has no words any more.
            if command and path.name != str(os.getpid()) and any(name in words for name in names):
                found[int(path.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def inside(directory):
    """Command lines, by pid, of those in mount namespaces of sandboxes with something below this directory; CRIU's processes have no
    environment by which they could be known. A file system that a test has mounted at the directory itself is in sandboxes of other
    tests too."""
    found, own, name = {}, os.readlink("/proc/self/ns/mnt"), os.fsencode(directory.name) + b"/"
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(path / "ns/mnt") != own and name in (path / "mountinfo").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def state_and_parent(pid):
    """A letter, and a pid."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]


def waits_for_a_daemon(pid, command):
    """Whether it is a worker that no program has just now, with a context of its own or a shared one: it waits for the next daemon, for
    a minute at most, and ends."""
    with contextlib.suppress(OSError):
        threads = [(path / "comm").read_text() for path in Path(f"/proc/{pid}/task").iterdir()]
        return " worker --listen " in command and not any(name.startswith("client") for name in threads)
    return False


def see_all_end(root, run_root, limit):
    """Waits until no process of these directories is left, for so many seconds, but for workers that wait for a daemon; those that are
    left then are ended, and named."""
    last = time.monotonic() + limit
    while left := processes(root, run_root) | inside(run_root):
        waiting = [pid for pid, command in left.items() if waits_for_a_daemon(pid, command)]
        stuck = {pid: command for pid, command in left.items() if pid not in waiting}
        if not stuck or time.monotonic() > last:
            ended = [end(pid, command) for pid, command in left.items()]
            if not stuck:
                return
            raise ProcessesLeft(f"after {limit} s without a daemon these are left, of {root}: {'; '.join(ended)}")
        time.sleep(0.05)


def end(pid, command):
    """Has it end, and says what it was."""
    try:
        letter, parent = state_and_parent(pid)
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return f"{pid}, which has ended by now ({command})"
    return f"{pid} ({command}), in state {letter}, child of {parent}"


class Rekindle:
    """`with Rekindle() as r: r("ps")`. Leaves nothing behind, and says what would be left. Images lie below `state`, if it is given.

    Binaries that lie elsewhere have this checkout's CRIU.
    """

    def __init__(self, gpu="emulated", binaries=None, state=None, **environment):
        self.gpu = gpu
        self.command = str((binaries or BINARIES) / "rekindle")
        # A sandbox has a /dev/shm of its own: what program and test share lies elsewhere.
        self.root = Path(tempfile.mkdtemp(prefix="rekindle-"))
        self.run_root = Path(tempfile.mkdtemp(prefix="rekindle-", dir="/dev/shm"))
        self.state = Path(state or self.root / "state")
        self.marks = self.root / "marks"
        self.marks.mkdir()
        self.environment = dict(
            os.environ,
            REKINDLE_SOCKET=str(self.root / "socket"),
            REKINDLE_STATE=str(self.state),
            REKINDLE_RUN_ROOT=str(self.run_root),
            REKINDLE_FAULT_MARKS=str(self.marks),
            **environment,
        )
        if binaries and (ROOT / ".build/criu").is_dir():
            self.environment.setdefault("REKINDLE_CRIU_DIR", str(ROOT / ".build/criu"))
        # NumPy's threads would spin on processors that other tests need.
        self.environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        # A line is one write, so that a checkpoint never finds half of one written.
        self.environment.pop("PYTHONUNBUFFERED", None)
        # Programs are started again and again: what they import is compiled once.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def __enter__(self):
        return self

    def __exit__(self, failure=None, *_):
        # A test that failed may have left them there.
        for mark in list(self.marks.iterdir()):
            self.let_go(mark.name)
        names = [row["name"] for row in self.sandboxes() if row["pid"]]
        if names:
            self("kill", *names, check=False)
        self("shutdown", check=False)
        try:
            see_all_end(self.root, self.run_root, END)
        except ProcessesLeft:
            # Of a test that failed that is no news.
            if failure is None:
                raise
        finally:
            shutil.rmtree(self.root, ignore_errors=True)
            shutil.rmtree(self.run_root, ignore_errors=True)

    def __call__(self, *arguments, check=True, limit=PATIENCE):
        command = [self.command, *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit)
        if check and done.returncode:
            raise CommandError(arguments, done.returncode, done.stderr.strip())
        return done.stdout

    def begin(self, *arguments):
        """Begins a command, whose end is to be waited for."""
        return Begun(self, arguments)

    def own_cpu_bytes(self, image):
        """What an image has of a CPU half that no other image has."""
        parts = self.json("inspect", image)["parts"]
        return sum(part["stored"] for part in parts if part["kind"].startswith("cpu") and not part.get("from"))

    def json(self, *arguments, **options):
        return json.loads(self(*arguments, "--json", **options))

    def run(self, name, *command):
        self("run", "-d", "--name", name, "--gpu", self.gpu, "--", *command)

    def restore(self, image, name):
        return self.json("restore", image, "--name", name, "--gpu", self.gpu, "-d")

    def wake(self, name):
        """What the program does by itself may have woken it already."""
        try:
            self("wake", name)
        except CommandError as error:
            if not error.message.endswith("is awake"):
                raise

    def sandboxes(self):
        return self.json("ps", "--all", check=False)["sandboxes"]

    def sandbox(self, name):
        return next(row for row in self.sandboxes() if row["name"] == name)

    def lines(self, name):
        """What this run of the program has printed, and not one before a restore: whole lines."""
        # What stands behind the last line's end is one that is being written.
        lines = self("logs", name).split("\n")[:-1]
        markers = [number for number, line in enumerate(lines) if line.startswith("--- rekindle: restored from the image ")]
        return lines[markers[-1] + 1 :] if markers else lines

    def reached(self, point):
        """Waits until somebody hangs at this point."""
        self.wait((self.marks / point).exists, point)

    def let_go(self, point):
        """Whoever hangs at this point goes on, and whoever comes there later."""
        (self.marks / f"{point}.go").touch()

    def hold_again(self, point):
        """The next one hangs at this point once more. Nobody hangs there now."""
        for mark in (point, f"{point}.go"):
            (self.marks / mark).unlink(missing_ok=True)

    def wait(self, condition, what, limit=PATIENCE):
        """Until the condition holds; the time spent, seconds."""
        start = time.monotonic()
        while not condition():
            so_far = time.monotonic() - start
            if so_far > limit:
                raise TimeoutError(f"after {limit} s still waiting for {what}")
            # Each look is a command mostly, and tests have few processors between them.
            time.sleep(min(0.02 + so_far / 16, 0.2))
        return time.monotonic() - start

    def wait_lines(self, name, count, limit=PATIENCE):
        """Until the sandbox has printed so many lines, or has ended."""
        # Each look is a command, and tests have few processors between them.
        looks = itertools.count(1)
        has_ended = lambda: next(looks) % 8 == 0 and not self.sandbox(name)["pid"]  # noqa: E731
        self.wait(lambda: len(self.lines(name)) >= count or has_ended(), f"{count} lines of {name}", limit)
        return self.lines(name)

    def wait_end(self, name, limit=PATIENCE):
        # A daemon that is killed meanwhile ends the command.
        try:
            self("wait", name, check=False, limit=limit)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"after {limit} s still waiting for the end of {name}") from None
        self.wait(lambda: not self.sandbox(name)["pid"], f"the end of {name}", limit)
        return self.lines(name)
