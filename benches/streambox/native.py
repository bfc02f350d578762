"""Functions in native programs (`program.py`): one for each instance, or one for all of an app."""

import collections
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

from kept import Handle
from rekindle.both import begin
from shared import PATIENCE, Unavailable, module_of, used_bytes, wait_for

HERE = Path(__file__).resolve().parent


class Connected:
    """An instance in a program."""

    def __init__(self, socket, name):
        # Names of what it kept that is not needed any more.
        self.released = collections.deque()
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
        self.programs, self.sockets, self.free, self.makers, self.turn = [], {}, {}, {}, threading.Lock()

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
        try:
            instance = free.get(timeout=PATIENCE)
        except queue.Empty:
            raise TimeoutError(f"no instance of {name} was free within {PATIENCE:g} s") from None
        released = [instance.released.popleft() for _ in range(len(instance.released))]
        try:
            result, seconds = instance.call(method, arguments, uses, released)
        except RuntimeError:
            free.put(instance)
            raise
        # One that did not answer is asked no more: its answer would be taken for that of the next call.
        free.put(instance)
        if isinstance(result, Handle) and result.name:
            self.makers[result.name] = instance
        return result, seconds

    def release(self, handle):
        """All who were called with it have ended."""
        if handle.name:
            self.makers.pop(handle.name).released.append(handle.name)

    def call(self, file, name, method, *arguments):
        return self.begin_call(file, name, method, arguments, 0)[0]

    def flow(self, file, workflow, arguments):
        """As `rekindle.Workflow` does it: each step in a thread, once those before it have ended."""
        last, results, kept = workflow.last(), {}, []

        def work(step, inputs):
            given = tuple(one.result() for one in inputs) if step.after else arguments
            service, method = step.function.client.service.name, step.function.name
            result = self.begin_call(file, service, None if method == service else method, given, workflow.uses(step))[0]
            if isinstance(result, Handle):
                kept.append(result)
            return result

        for step in workflow.steps:
            results[step] = begin(lambda step=step: work(step, [results[one] for one in step.after]))
        found = results[last].result(PATIENCE)
        # All steps have ended. Where one failed, another may still read what it was called with.
        for one in kept:
            self.release(one)
        return found

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
