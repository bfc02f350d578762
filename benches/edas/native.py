"""The baselines: an instance of a function is a process of its own, which has all of its GPU memory to itself.

`fixed` is EDAS's FixedGSL (its sections 3.1 and 8.1): a request that finds no idle instance of its function has one made, which
makes its GPU context, fetches the object from the store, copies it to the GPU and computes. `contexts` is its DGSF: of each
function two instances have made their contexts beforehand. Either keeps instances alive after their requests, data and all, until
others need the memory: then the one goes whose last request was longest ago.
"""

import collections
import contextlib
import socket
import sys
import threading
import time
from pathlib import Path

from instance import Lines

HERE = Path(__file__).resolve().parent
# How long any one step of an instance may take, and a request wait for memory, seconds.
PATIENCE = 60
# How long its end may.
END = 10
# How many instances of each function `contexts` has beforehand (EDAS, section 8.1).
AHEAD = 2


class BaselineError(Exception):
    """A request that could not be answered, and why."""


class Containers:
    """The warm processes, one a function, and the socket that they and their instances come to. `start(name, command)` starts one."""

    def __init__(self, place, start):
        self.place, self.start = str(place), start
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.place)
        self.listener.listen(256)
        self.turn = threading.Condition()
        self.came, self.numbers = {}, 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.settimeout(PATIENCE)
            lines = Lines(connection)
            (hello,) = next(iter(lines)).values()
            with self.turn:
                self.came[hello] = lines
                self.turn.notify_all()

    def wait(self, who, limit=PATIENCE):
        with self.turn:
            if not self.turn.wait_for(lambda: who in self.came, limit):
                raise BaselineError(f"{who} did not come within {limit:.0f} s")
            return self.came[who]

    def begin(self, names, gpu, work):
        for name in names:
            self.start(name, [sys.executable, HERE / "instance.py", name, gpu, work, self.place])

    def fork(self, name):
        """The connection of a new instance of the function."""
        container = self.wait(name)
        with self.turn:
            self.numbers += 1
            number = self.numbers
            container.say(fork=number)
        return self.wait(number)

    def close(self):
        """Containers end when nobody listens to them any more, and so do their instances."""
        self.listener.close()
        for lines in self.came.values():
            with contextlib.suppress(OSError):
                lines.connection.shutdown(socket.SHUT_RDWR)


class Instance:
    """A process; one thread has it at a time."""

    def __init__(self, function, is_ahead=False):
        self.function, self.is_ahead = function, is_ahead
        self.lines = None
        self.has_data = False
        self.used = time.monotonic()
        self.bytes = 0

    def do(self, what, **more):
        self.lines.say(do=what, **more)
        answer = next(iter(self.lines), {"error": "it ended"})
        if "error" in answer:
            raise BaselineError(f"{what} of {self.function} failed: {answer['error'].strip().splitlines()[-1]}")
        return answer

    def end(self):
        """Returns when its process has ended, and given back its memory."""
        if self.lines is None:
            return
        with contextlib.suppress(OSError):
            self.lines.connection.settimeout(END)
            self.lines.connection.shutdown(socket.SHUT_WR)
            while self.lines.connection.recv(4096):
                pass


class Pool:
    """Instances under a limit of GPU memory. `rows` has for each function its bytes on the GPU; a context takes `context_bytes`.

    Requests that need memory get it in the order in which they came; those that find an idle instance with its data do not wait.
    Of each function there are at most so many instances as Rekindle may have (`most`).
    Of the host's memory, fetched data may take `host_bytes` at once.
    """

    def __init__(self, containers, rows, limit_bytes, context_bytes, host_bytes):
        self.containers, self.rows = containers, rows
        self.limit, self.context_bytes, self.host_bytes = limit_bytes, context_bytes, host_bytes
        self.turn = threading.Condition()
        self.idle, self.line = [], collections.deque()
        self.used = self.fetching = 0
        self.ended = self.most = 0
        self.all = set()
        self.is_closed = False

    def ahead(self, names):
        """Instances with contexts, as far as there is memory for them."""
        for _ in range(AHEAD):
            threads = []
            for name in names:
                with self.turn:
                    if self.used + self.context_bytes > self.limit or self.make_room(self.context_bytes) is None:
                        continue
                    instance = Instance(name, is_ahead=True)
                    self.all.add(instance)
                threads.append(threading.Thread(target=self.make_ahead, args=(instance,)))
                threads[-1].start()
            for thread in threads:
                thread.join(PATIENCE)

    def make_ahead(self, instance):
        with self.held(instance, self.context_bytes):
            instance.lines = self.containers.fork(instance.function)
            instance.do("open")

    @contextlib.contextmanager
    def held(self, instance, size):
        """An instance that a thread has; one that failed is ended. The memory has been taken."""
        instance.bytes += size
        try:
            yield
        except BaseException:
            instance.end()
            with self.turn:
                self.all.discard(instance)
                self.used -= instance.bytes
                self.turn.notify_all()
            raise
        with self.turn:
            instance.used = time.monotonic()
            self.idle.append(instance)
            self.turn.notify_all()

    def answer(self, name, request):
        """`{"answer", "found", "seconds": {stage: seconds}}`."""
        start = time.perf_counter()
        instance, size, found, victims = self.take(name)
        with self.held(instance, size):
            self.give_up(victims)
            seconds = {"wait": time.perf_counter() - start}
            if instance.lines is None:
                start = time.perf_counter()
                instance.lines = self.containers.fork(name)
                seconds["fork"] = time.perf_counter() - start
                if self.is_closed:
                    raise BaselineError("the run has ended")
                seconds |= instance.do("open")["seconds"]
            if not instance.has_data:
                seconds |= self.load(instance)
            done = instance.do("compute", request=request)
        return {"answer": done["answer"], "found": found, "seconds": seconds | done["seconds"]}

    def load(self, instance):
        size = self.rows[instance.function]["bytes"]
        start = time.perf_counter()
        with self.turn:
            self.turn.wait_for(lambda: not self.fetching or self.fetching + size <= self.host_bytes, PATIENCE)
            self.fetching += size
        waited = time.perf_counter() - start
        try:
            seconds = instance.do("load")["seconds"]
        finally:
            with self.turn:
                self.fetching -= size
                self.turn.notify_all()
        instance.has_data = True
        return {"host": waited} | seconds

    def take(self, name):
        """An instance, how much memory has been taken for it, at which stage it was, and who is to give its memory up first."""
        data = self.rows[name]["gpu_bytes"]
        if self.context_bytes + data > self.limit:
            raise BaselineError(f"{name} needs {self.context_bytes + data} bytes of GPU memory, and {self.limit:.0f} is the limit")
        ticket = object()
        with self.turn:
            end = time.monotonic() + PATIENCE
            try:
                while True:
                    if instance := self.idle_one(name, has_data=True):
                        return instance, 0, "data", []
                    if not self.may_have(name):
                        # It waits for one of its own function, and holds nobody up.
                        if ticket in self.line:
                            self.line.remove(ticket)
                            self.turn.notify_all()
                    elif ticket not in self.line:
                        self.line.append(ticket)
                    if self.line and self.line[0] is ticket:
                        # One that is there is not to make room for itself.
                        if instance := self.idle_one(name, has_data=False):
                            if (victims := self.make_room(data)) is not None:
                                return instance, data, "context", victims
                            self.idle.append(instance)
                        elif (victims := self.make_room(self.context_bytes + data)) is not None:
                            instance = Instance(name)
                            self.all.add(instance)
                            return instance, self.context_bytes + data, "nothing", victims
                    if not self.turn.wait(max(0, end - time.monotonic())):
                        raise BaselineError(f"after {PATIENCE} s there is no GPU memory for {name}: {self.used} of {self.limit} bytes are used")
            finally:
                if ticket in self.line:
                    self.line.remove(ticket)
                    self.turn.notify_all()

    def may_have(self, name):
        """Whether there is an idle instance of the function, or may be one more."""
        return any(one.function == name for one in self.idle) or sum(one.function == name for one in self.all) < self.rows[name]["most"]

    def idle_one(self, name, has_data):
        """The one that was used last."""
        fitting = [one for one in self.idle if one.function == name and one.has_data == has_data]
        if not fitting:
            return None
        instance = max(fitting, key=lambda one: one.used)
        self.idle.remove(instance)
        return instance

    def make_room(self, size):
        """Takes so much memory; the idle instances that are to give theirs up for it first. None, and nothing is taken, if it is too much."""
        held = sum(one.bytes for one in self.idle)
        if self.used - held + size > self.limit:
            return None
        victims = []
        # Data first: a context alone is small.
        for instance in sorted(self.idle, key=lambda one: (not one.has_data, one.used)):
            if self.used + size <= self.limit:
                break
            self.idle.remove(instance)
            keeps = self.context_bytes if instance.is_ahead and instance.has_data else 0
            self.used -= instance.bytes - keeps
            instance.bytes = keeps
            if not keeps:
                self.all.discard(instance)
            victims.append(instance)
        if self.used + size > self.limit:
            # Contexts that were made ahead go too.
            for instance in [one for one in victims if one.bytes]:
                self.used -= instance.bytes
                instance.bytes = 0
                self.all.discard(instance)
        self.used += size
        self.most = max(self.most, self.used)
        return victims

    def give_up(self, victims):
        """Returns when the memory is there."""
        for instance in victims:
            if instance.bytes:
                with contextlib.suppress(BaselineError, OSError):
                    instance.do("forget")
                    instance.has_data = False
                    with self.turn:
                        self.idle.append(instance)
                    continue
                with self.turn:
                    self.used -= instance.bytes
            instance.end()
            with self.turn:
                self.all.discard(instance)
                self.ended += 1

    def close(self):
        """All instances end, those too that some thread still waits for."""
        with self.turn:
            self.is_closed, self.limit = True, 0
            threads = [threading.Thread(target=instance.end) for instance in self.all]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
