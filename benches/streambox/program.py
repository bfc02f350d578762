"""Serves functions of an app's file without Rekindle: `program.py SOCKET STORE PLACE FILE`.

Each connection is an instance of one function, with a thread and a stream of its own. Its first message is the name of the
function, and it is answered with the seconds that its start took. Then it gets calls: `(method, arguments, uses, released)`. With
`uses` the result is kept for so many others (`kept.py`), who are called with its handle; `released` are those of this program's
that nobody needs any more.
"""

import os
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from multiprocessing.connection import Listener
from pathlib import Path

# numba gives each thread a stream.
os.environ["NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM"] = "1"
sys.path[:0] = [str(Path(__file__).resolve().parent)]

import device  # noqa: E402
from kept import STORES, Handle, is_array, replaced  # noqa: E402
from rekindle.arrays import as_array  # noqa: E402
from rekindle.loading import load_module  # noqa: E402

# One set-up at a time: importing and making random weights are the whole process's.
SETTING_UP = threading.Lock()


def own_stream(module):
    """torch's stream for this thread; others have theirs by themselves."""
    models = getattr(module, "models", None)
    if models is None or not models.IS_LARGE:
        return nullcontext()
    import torch

    return torch.cuda.stream(torch.cuda.Stream())


def wait_for_stream(module):
    """What a function began on the GPU is done: others are on other streams."""
    models = getattr(module, "models", None)
    if models is None:
        return
    if models.IS_LARGE:
        import torch

        torch.cuda.current_stream().synchronize()
    else:
        from numba import cuda

        cuda.per_thread_default_stream().synchronize()


def on_host(value):
    return replaced(value, lambda one: as_array(one) if is_array(one) else one)


class Instance:
    """One function, whose calls come over one connection."""

    def __init__(self, module, store, name):
        self.module, self.store = module, store
        self.user = getattr(module, name)
        self.object = self.user() if hasattr(self.user, "declaration") else None

    def set_up(self):
        if self.object is not None:
            self.object._here  # noqa: B018
            wait_for_stream(self.module)

    def call(self, method, arguments, uses, released):
        self.store.release(released)
        start = time.perf_counter()
        given = [self.store.take(one) if isinstance(one, Handle) else one for one in arguments]
        taken = time.perf_counter()
        function = self.user if self.object is None else getattr(self.object, method)
        value = function.local(*given)
        if self.object is not None:
            wait_for_stream(self.module)
        done = time.perf_counter()
        result = self.store.keep(value, uses) if uses else on_host(value)
        return result, {"take": taken - start, "keep": time.perf_counter() - done}


def serve(connection, module, store):
    try:
        name = connection.recv()
        start = time.perf_counter()
        device.enter()
        context = time.perf_counter() - start
        with own_stream(module):
            instance = Instance(module, store, name) if name else None
            if instance is not None:
                with SETTING_UP:
                    instance.set_up()
            connection.send(("ready", {"context_s": context, "set_up_s": time.perf_counter() - start}))
            while True:
                answer(connection, module, instance, connection.recv())
    except (EOFError, ConnectionError):
        pass
    except Exception:
        connection.send(("failed", traceback.format_exc()))


def answer(connection, module, instance, message):
    """Without an instance: all of the workflow, in this thread."""
    try:
        if instance is None:
            connection.send(("result", on_host(module.flow.local(*message)), {}))
        else:
            connection.send(("result", *instance.call(*message)))
    except Exception:
        connection.send(("failed", traceback.format_exc()))


def main(socket, store, place, file):
    module = load_module(Path(file))
    # All of them have what one keeps.
    kept = STORES[store](place)
    with Listener(socket, "AF_UNIX", backlog=64) as listener:
        while True:
            connection = listener.accept()
            threading.Thread(target=serve, args=(connection, module, kept), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
