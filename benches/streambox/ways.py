"""Ways to run the functions of an app: each has `start`, `call`, `flow`, `add`, `gpu_bytes` and `stop`.

`rekindle`: services, all functions of an app in one GPU context, arrays handed on by reference. `processes`: a program for each
function, values through the host's memory. `mps`: the same, their GPU calls through NVIDIA's Multi-Process Service. `streams`: all
functions as threads of one program with a stream each. Without an NVIDIA GPU the programs of the latter run in a sandbox each, for
there is no other way to the emulated GPU.
"""

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Client
from pathlib import Path

import rekindle
from kept import Handle
from rekindle.both import begin
from rekindle.loading import load_module

HERE = Path(__file__).resolve().parent
NAMES = ["rekindle", "processes", "mps", "streams"]
# Seconds that one call, or the start of a program, may take.
PATIENCE = 60.0


class Unavailable(Exception):
    """This machine does not have it."""


MODULES = {}


def module_of(file):
    if file not in MODULES:
        MODULES[file] = load_module(file)
    return MODULES[file]


def wait_for(condition, what, limit=PATIENCE):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"after {limit:g} s still waiting for {what}")
        time.sleep(0.002)


def used_bytes(instance):
    """GPU memory in use: what the driver says, or, of the emulated GPU, what programs have."""
    if instance.gpu.startswith("nvidia"):
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]) << 20
    return sum(row["device_bytes"] for row in instance.json("ps")["sandboxes"])


class Rekindle:
    """Services, one instance of each that stays."""

    def __init__(self, instance):
        self.instance, self.deployed, self.functions = instance, {}, {}

    def begin_deploy(self, files):
        """All at once, as commands under way."""
        return {file: self.instance.begin("deploy", file, "--python", sys.executable, "--json") for file in files}

    def end_deploy(self, begun):
        """Their images are there, and no instance."""
        for file, one in begun.items():
            one.end(limit=600)
            self.deployed[file] = module_of(file).app
            self.rest(self.deployed[file].name)

    def services(self):
        return {row["name"]: row for row in self.instance.json("services")["services"]}

    def keep(self, service):
        """From now on its instances stay."""
        image = self.services()[service]["source"]["image"]
        self.instance("serve", image, "--name", service, "--idle", "1h", "--queue", 1000)

    def running(self, service):
        return sum(one["stage"] == "running" for one in self.services()[service]["instances"])

    def start(self, file, counts=None):
        if file not in self.deployed:
            self.end_deploy(self.begin_deploy([file]))
        app = self.deployed[file]
        counts = counts or dict.fromkeys(app.declarations, 1)
        for name, count in counts.items():
            self.keep(f"{app.name}-{name}")
            self.instance("scale", f"{app.name}-{name}", "--min", count, "--max", count)
        for name, count in counts.items():
            wait_for(lambda: self.running(f"{app.name}-{name}") >= count, f"{count} instances of {app.name}-{name}")

    def call(self, file, name, method, *arguments):
        # Whoever calls asks once where the service listens.
        if (file, name, method) not in self.functions:
            app = self.deployed[file].name
            one = rekindle.Function.from_name(app, name) if method is None else getattr(rekindle.Cls.from_name(app, name)(), method)
            self.functions[file, name, method] = one
        return self.functions[file, name, method].remote(*arguments)

    def flow(self, file, workflow, arguments):
        return workflow.remote(*arguments)

    def add(self, file, name):
        """One more instance: seconds until it listens; microseconds of its GPU half by the trace of its restore."""
        service = f"{self.deployed[file].name}-{name}"
        before = {one["name"] for one in self.services()[service]["instances"]}
        start = time.perf_counter()
        self.instance("scale", service, "--min", len(before) + 1, "--max", len(before) + 1)
        wait_for(lambda: self.running(service) > len(before), f"one more instance of {service}")
        took = time.perf_counter() - start
        (new,) = {one["name"] for one in self.services()[service]["instances"]} - before
        phases = self.instance.json("trace", new, "--svg", "/dev/null")["traces"][-1]["phases"]
        return {"whole_s": took, "gpu_half_s": sum(row["duration_us"] for row in phases if row["lane"] == "gpu half") / 1e6}

    def gpu_bytes(self):
        return used_bytes(self.instance)

    def rest(self, app=None):
        """No instance of any service, or of those of one app."""
        some = [name for name in self.services() if app is None or name.startswith(f"{app}-")]
        for service in some:
            image = self.services()[service]["source"]["image"]
            self.instance("serve", image, "--name", service, "--min", 0, "--idle", "0s", "--idle-end", "0s")
        wait_for(lambda: not any(self.services()[name]["instances"] for name in some), "the instances to end")

    def contexts(self):
        """How many contexts take memory: those that are shared, and those of workers that wait."""
        row = self.instance.json("ps")
        return {"shared": len(row["contexts"]), "waiting": len(row["pool"])}

    def stop(self):
        """On an NVIDIA GPU no context of the daemon's is left beside the programs that come next."""
        for service in self.services():
            self.instance("unserve", service, "--now")
        if self.instance.gpu.startswith("nvidia"):
            self.instance("shutdown")


class Connected:
    """An instance in a program."""

    def __init__(self, socket, name):
        self.connection = self.reached(socket)
        self.connection.send(name)
        self.started = self.answer()[0]

    def reached(self, socket):
        """A socket is there a moment before it is listened to."""
        for _ in range(100):
            try:
                return Client(str(socket), "AF_UNIX")
            except ConnectionRefusedError:
                time.sleep(0.01)
        return Client(str(socket), "AF_UNIX")

    def answer(self):
        if not self.connection.poll(PATIENCE):
            raise TimeoutError(f"a native program does not answer within {PATIENCE:g} s")
        kind, *values = self.connection.recv()
        if kind == "failed":
            raise RuntimeError(f"a native program failed: {values[0].strip().splitlines()[-1]}")
        return values

    def call(self, *message):
        self.connection.send(message)
        return self.answer()


class Programs:
    """Native programs: one for each instance, or one for all of an app."""

    def __init__(self, instance, store, environment=()):
        self.instance, self.store, self.environment = instance, store, dict(environment)
        self.native = instance.gpu.startswith("nvidia")
        self.place = Path(tempfile.mkdtemp(prefix="streambox-", dir="/dev/shm" if self.native else instance.root))
        self.programs, self.sockets, self.free, self.turn = [], {}, {}, threading.Lock()

    def spawn(self, file):
        """A program's socket, before it listens."""
        with self.turn:
            number = len(self.programs)
            self.programs.append(None)
        socket = self.place / f"socket-{number}"
        command = [sys.executable, HERE / "program.py", socket, self.store, self.place, file]
        command = list(map(str, command))
        if self.native:
            log = open(self.place / f"log-{number}", "w")
            environment = dict(os.environ, **self.environment)
            self.programs[number] = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        else:
            name = f"{self.place.name}-{number}"
            self.instance("run", "-d", "--name", name, "--gpu", self.instance.gpu, "--", *command)
            self.programs[number] = name
        wait_for(lambda: socket.exists() or self.ended(number), "a native program to listen")
        if self.ended(number):
            raise RuntimeError(f"a native program ended: {self.log(number)}")
        return socket

    def ended(self, number):
        if self.native:
            return self.programs[number].poll() is not None
        return not self.instance.sandbox(self.programs[number])["pid"]

    def log(self, number):
        text = (self.place / f"log-{number}").read_text() if self.native else self.instance("logs", self.programs[number])
        return (text.strip().splitlines() or ["it said nothing"])[-1]

    def socket_of(self, file):
        """Of the app's one program, or of a new one."""
        if self.store == "host":
            return self.spawn(file)
        if file not in self.sockets:
            self.sockets[file] = self.spawn(file)
        return self.sockets[file]

    def start(self, file, counts=None):
        counts = counts or dict.fromkeys(module_of(file).app.declarations, 1)
        names = [name for name, count in counts.items() for _ in range(count)]
        if self.store == "here":
            self.socket_of(file)
        # As many at once as there are processors.
        for at in range(0, len(names), os.cpu_count()):
            some = names[at : at + os.cpu_count()]
            for name, one in zip(some, [begin(lambda name=name: Connected(self.socket_of(file), name)) for name in some]):
                self.free.setdefault((file, name), queue.Queue()).put(one.result())

    def begin_call(self, file, name, method, arguments, uses):
        free = self.free[file, name]
        instance = free.get(timeout=PATIENCE)
        try:
            return instance.call(method, arguments, uses)
        finally:
            free.put(instance)

    def call(self, file, name, method, *arguments):
        return self.begin_call(file, name, method, arguments, 0)[0]

    def flow(self, file, workflow, arguments):
        """As `rekindle.Workflow` does it: each step in a thread, once those before it have ended."""
        last, results, names = workflow.last(), {}, []

        def work(step, inputs):
            given = tuple(one.result() for one in inputs) if step.after else arguments
            service, method = step.function.client.service.name, step.function.name
            result = self.begin_call(file, service, None if method == service else method, given, workflow.uses(step))[0]
            if isinstance(result, Handle):
                names.append(result.name)
            return result

        for step in workflow.steps:
            results[step] = begin(lambda step=step: work(step, [results[one] for one in step.after]))
        try:
            return results[last].result(PATIENCE)
        finally:
            if self.store == "host":
                for name in names:
                    (self.place / name).unlink(missing_ok=True)

    def alone(self, requests):
        """What one thread of one program for each app finds for its requests, and how long each takes: all ways are to find that."""
        ready = {file: begin(lambda file=file: self.ready(file, some[0])) for file, some in requests.items()}
        return {file: [self.timed(ready[file].result(), arguments) for arguments in some] for file, some in requests.items()}

    def ready(self, file, arguments):
        instance = Connected(self.socket_of(file), "")
        instance.call(*arguments)
        return instance

    def timed(self, instance, arguments):
        start = time.perf_counter()
        return instance.call(*arguments)[0], time.perf_counter() - start

    def add(self, file, name):
        start = time.perf_counter()
        new = Connected(self.socket_of(file), name)
        took = time.perf_counter() - start
        self.free[file, name].put(new)
        return {"whole_s": took, "context_s": new.started["context_s"], "set_up_s": new.started["set_up_s"]}

    def gpu_bytes(self):
        return used_bytes(self.instance)

    def stop(self):
        for one in self.programs:
            if one is not None and self.native:
                one.terminate()
                try:
                    one.wait(10)
                except subprocess.TimeoutExpired:
                    one.kill()
                    one.wait()
        if not self.native and any(self.programs):
            self.instance("kill", *[one for one in self.programs if one], check=False)
        shutil.rmtree(self.place, ignore_errors=True)


class Mps(Programs):
    """With a control daemon of its own."""

    def __init__(self, instance):
        if not instance.gpu.startswith("nvidia"):
            raise Unavailable("MPS is of NVIDIA GPUs alone")
        if shutil.which("nvidia-cuda-mps-control") is None:
            raise Unavailable("this machine has no nvidia-cuda-mps-control")
        self.directory = Path(tempfile.mkdtemp(prefix="streambox-mps-"))
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": str(self.directory), "CUDA_MPS_LOG_DIRECTORY": str(self.directory)}
        done = self.control(["-d"])
        if done.returncode:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise Unavailable(f"nvidia-cuda-mps-control does not start: {(done.stderr or done.stdout).strip()[-200:]}")
        super().__init__(instance, "host", self.variables)
        try:
            self.probe()
        except Unavailable:
            self.stop()
            raise

    def probe(self):
        """Whether a program gets a context."""
        environment = dict(os.environ, **self.variables)
        try:
            done = subprocess.run([sys.executable, HERE / "device.py"], env=environment, capture_output=True, text=True, timeout=30)
        except subprocess.TimeoutExpired:
            raise Unavailable("a program under MPS gets no context within 30 s") from None
        if done.returncode:
            raise Unavailable(f"a program under MPS gets no context: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")

    def control(self, words, said=""):
        environment = dict(os.environ, **self.variables)
        command = ["nvidia-cuda-mps-control", *words]
        with open(self.directory / "control", "w+") as output:
            done = subprocess.run(command, env=environment, input=said, stdout=output, stderr=output, text=True, timeout=30)
            output.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, output.read(), "")

    def stop(self):
        super().stop()
        self.control([], "quit\n")
        shutil.rmtree(self.directory, ignore_errors=True)


def make(name, instance):
    if name == "rekindle":
        return Rekindle(instance)
    if name == "mps":
        return Mps(instance)
    return Programs(instance, {"processes": "host", "streams": "here"}[name])
