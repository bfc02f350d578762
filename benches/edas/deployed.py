"""Rekindle: each function is a service of its own, whose instances sleep and end when they are idle, or when others need their
GPU memory."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rekindle

HERE = Path(__file__).resolve().parent
ENDED = {"exited", "killed", "stopped", "failed"}
# How many answers one after the other.
IN_A_ROW = 5
# Seconds before a request that finds an instance at rest.
PAUSE = 0.3


def service(name):
    return f"edas-{name}-Served"


def deploy(instance, names, environment, together, limit):
    """Images of all of them, so many at a time; `{name: error}` of those that have none."""
    failures, end = {}, time.monotonic() + limit

    def one(name):
        words = [instance.command, "deploy", str(HERE / "app.py"), "--python", sys.executable, "--json"]
        variables = {**instance.environment, **environment, "EDAS_FUNCTION": name}
        try:
            done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=max(1, end - time.monotonic()))
            if done.returncode:
                failures[name] = done.stderr.strip()[-1500:]
        except subprocess.TimeoutExpired:
            failures[name] = f"its image was not made within {limit:.0f} s"

    with ThreadPoolExecutor(together) as threads:
        list(threads.map(one, names))
    return failures


def serve(instance, name, *words):
    """Changes the limits of a service, its image as it is."""
    image = row_of(instance, name)["source"]["image"]
    instance("serve", image, "--name", service(name), *words)


def row_of(instance, name):
    return next(row for row in instance.json("services")["services"] if row["name"] == service(name))


def remove(instance):
    for row in instance.json("services")["services"]:
        instance("unserve", row["name"], "--now", check=False)


class Watch:
    """At which stages the instances of each service are, as the daemon tells it."""

    def __init__(self, instance):
        self.states, self.turn = {}, threading.Lock()
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([instance.command, "events", "--json"], env=instance.environment, text=True, **pipes)
        self.listening = threading.Event()
        threading.Thread(target=self.read, daemon=True).start()
        if not self.listening.wait(30):
            raise TimeoutError("`rekindle events` says nothing")
        for row in instance.sandboxes():
            self.note(row["name"], row["state"])

    def read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "listening":
                self.listening.set()
            elif event["event"] == "state":
                self.note(event["sandbox"], event["state"])
        self.listening.set()

    def note(self, sandbox, state):
        with self.turn:
            self.states[sandbox] = state

    def stage(self, name):
        """The most awake of the states that instances of the service have: `running`, `asleep`, `coming`; `image` if there are none."""
        with self.turn:
            states = {state for sandbox, state in self.states.items() if sandbox.rpartition("-")[0] == service(name)} - ENDED
        return next((state for state in ("running", "asleep") if state in states), "coming" if states else "image")

    def close(self):
        self.process.kill()
        self.process.wait()


class Callers:
    """Calls by name, each with the stage that its service was found at."""

    def __init__(self, instance, names):
        os.environ["REKINDLE_COMMAND"] = instance.command
        for variable in ("REKINDLE_SOCKET", "REKINDLE_STATE", "REKINDLE_RUN_ROOT"):
            os.environ[variable] = instance.environment[variable]
        # Nobody has to ask where it is in the first call.
        ports = {row["name"]: row["port"] for row in instance.json("services")["services"]}
        url = lambda name: f"http://127.0.0.1:{ports[service(name)]}"
        self.remotes = {name: rekindle.Cls.from_name(f"edas-{name}", "Served", url=url(name))().answer.remote for name in names}
        self.watch = Watch(instance)

    def answer(self, name, request):
        if name not in self.remotes:
            raise LookupError(f"{name} is not deployed")
        found = self.watch.stage(name)
        said = self.remotes[name](request)
        seconds = {"load": said["load"], "compute": said["compute"]}
        return {"answer": said["answer"], "found": found, "seconds": seconds, "first": said["first"]}


def limit(instance, count):
    """A daemon that gives services so many bytes of the GPU's memory; the services that there are go on with it. None: no limit."""
    instance("shutdown")
    instance.environment.pop("REKINDLE_SERVICE_MEMORY", None)
    if count:
        instance.environment["REKINDLE_SERVICE_MEMORY"] = str(int(count))
    instance.wait(lambda: any(one["ready"] for one in instance.json("ps")["pool"]), "a worker", limit=60)


@contextlib.contextmanager
def counted(instance, rows):
    """Meanwhile, four times a second: what the daemon counts of the GPU's memory, and how many instances there are awake."""
    over = threading.Event()

    def look():
        while not over.wait(0.25):
            found = instance.json("services")
            awake = sum(one["stage"] == "running" for row in found["services"] for one in row["instances"])
            rows.append({"bytes": max(found["memory"]["used_bytes"].values(), default=0), "awake": awake})

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def memory(instance):
    """The limit of GPU memory and what is used of it, once nothing has more: an instance that has grown has others go."""
    rows = []

    def keeps():
        rows.append(instance.json("services")["memory"])
        return rows[-1]["limit_bytes"] is None or max(rows[-1]["used_bytes"].values(), default=0) <= rows[-1]["limit_bytes"]

    with contextlib.suppress(TimeoutError):
        instance.wait(keeps, "services to keep to their limit", limit=10)
    return rows[-1]


def forget(instance):
    """Ends the memory daemon, and all data that it holds with it."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if words[1:2] == [b"memory"] and os.readlink(place / "fd/2").startswith(str(instance.state)):
                os.kill(int(place.name), signal.SIGKILL)


def begin(instance, names, idle, asleep, most):
    """No service has an instance, and no data are in the host's memory; from now on they stay for so many seconds."""
    for name in names:
        serve(instance, name, "--idle", "0s", "--idle-end", "0s")
    gone = lambda: not any(row["instances"] for row in instance.json("services")["services"])
    instance.wait(gone, "all instances to end", limit=60)
    forget(instance)
    for name in names:
        serve(instance, name, "--idle", f"{idle * 1000:.0f}ms", "--idle-end", f"{asleep * 1000:.0f}ms", "--max", most(name))


def stages(instance, name, callers, rounds, left):
    """Seconds of an answer by the stage that the one instance is at: EDAS's Table 4."""
    rows = {}
    try:
        for level in ("gpu", "host"):
            serve(instance, name, "--level", level, "--max", "1")
            for _ in range(rounds):
                callers.answer(name, 0)
                for stage in ("running", f"asleep-{level}", *(("image", "store") if level == "host" else ())):
                    if left() < 20:
                        return rows
                    come_to(instance, name, stage.partition("-")[0])
                    if stage == "store":
                        forget(instance)
                    start = time.perf_counter()
                    callers.answer(name, 0)
                    rows.setdefault(stage, []).append(time.perf_counter() - start)
                    if stage == "running":
                        rows.setdefault("in a row", []).extend(in_a_row(lambda: callers.answer(name, 0)))
    except Exception as error:
        rows["error"] = f"{type(error).__name__}: {error}"[-1000:]
    return rows


def in_a_row(answer):
    """Seconds of answers one after the other."""
    marks = [time.perf_counter()]
    for _ in range(IN_A_ROW):
        answer()
        marks.append(time.perf_counter())
    return [end - start for start, end in itertools.pairwise(marks)]


def native_stages(answer, rounds):
    """As `stages`, of an instance of a baseline that has its data: after a pause, and in a row."""
    rows = {"running": [], "in a row": []}
    answer()
    for _ in range(2 * rounds):
        time.sleep(PAUSE)
        start = time.perf_counter()
        answer()
        rows["running"].append(time.perf_counter() - start)
        rows["in a row"] += in_a_row(answer)
    return rows


def come_to(instance, name, stage):
    wanted = {"running": ["running"], "asleep": ["asleep"]}.get(stage, [])
    windows = {"running": ("1h", "1h"), "asleep": ("0s", "1h")}.get(stage, ("0s", "0s"))
    serve(instance, name, "--idle", windows[0], "--idle-end", windows[1])
    instance.wait(lambda: [one["stage"] for one in row_of(instance, name)["instances"]] == wanted, f"{name} to be {stage}", limit=30)
    serve(instance, name, "--idle", "1h", "--idle-end", "1h")
    instance.wait(lambda: any(one["ready"] for one in instance.json("ps")["pool"]), "a worker", limit=20)
    time.sleep(PAUSE)
