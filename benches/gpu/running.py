"""How a workload is run: in steps, in batches, as a service or as training, with a digest of each result."""

import argparse
import collections
import contextlib
import ctypes
import hashlib
import itertools
import os
import statistics
import struct
import sys
import time

# Steps before a program says that it is ready.
WARM_UP = 8


def host(tensor) -> bytes:
    import torch

    return tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()


def to_bytes(result) -> bytes:
    if isinstance(result, bytes):
        return result
    return result.tobytes() if type(result).__module__ == "numpy" else host(result)


def digest(result):
    return hashlib.sha256(to_bytes(result)).hexdigest()[:24]


def give_back():
    """What torch and the C library keep of memory that nothing is in."""
    sys.modules["torch"].cuda.empty_cache()
    ctypes.CDLL(None).malloc_trim(0)


def requests(step, trigger, trim=False):
    """Warms up, then yields whenever the file has appeared."""
    for i in range(WARM_UP):
        to_bytes(step(i))
    if trim:
        give_back()
    print("ready", flush=True)
    while True:
        while not os.path.exists(trigger):
            time.sleep(0.001)
        # Of several that wait for the same file, one gets it.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(trigger)
            yield


def serve(step, trigger, trim):
    for _ in requests(step, trigger, trim):
        answer = digest(step(0))
        print(f"answer {answer}", flush=True)
        with open(f"{trigger}.answers", "a") as file:
            file.write(f"{answer}\n")


def run_batches(step, trigger):
    for _ in requests(step, trigger):
        times = []
        for i in range(30):
            start = time.perf_counter()
            to_bytes(step(i))
            times.append(1e3 * (time.perf_counter() - start))
        print(f"batch {statistics.median(times):.4f}", flush=True)


def train(step, file):
    print("ready", flush=True)
    for i in itertools.count():
        line = f"{digest(step(i))}"
        with open(file, "a") as lines:
            lines.write(f"{i} {time.time()} {line}\n")


def train_ahead(step, file, ahead):
    """As `train`, of a program that never waits for the GPU to rest: so many steps are enqueued behind the one that it waits for."""
    torch = sys.modules["torch"]
    torch.manual_seed(0)
    beside, under_way = None, collections.deque()
    print("ready", flush=True)
    for i in itertools.count():
        result, done = step(i), torch.cuda.Event()
        done.record(torch.cuda.current_stream(result.device))
        beside = beside or torch.cuda.Stream(result.device)
        under_way.append((i, result, done))
        if len(under_way) <= ahead:
            continue
        number, result, done = under_way.popleft()
        with torch.cuda.stream(beside):
            done.wait()
            # torch copies it to pinned memory.
            line = digest(struct.pack("f", result.item()))
        with open(file, "a") as lines:
            lines.write(f"{number} {time.time()} {line}\n")


def main(workloads, description):
    """Runs one of these as the command line says: `workloads` has, by name, what builds its `step(i)`, and its environment."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name", choices=sorted(workloads))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--batches")
    parser.add_argument("--serve")
    parser.add_argument("--train")
    parser.add_argument("--ahead", type=int, default=0, help="with --train: steps enqueued behind the one that is waited for")
    parser.add_argument("--trim", action="store_true", help="give memory back that nothing is in before it serves")
    options = parser.parse_args()
    build, environment = workloads[options.name]
    os.environ.update(environment)
    step = build()
    if options.batches:
        run_batches(step, options.batches)
    if options.serve:
        serve(step, options.serve, options.trim)
    if options.train:
        train_ahead(step, options.train, options.ahead) if options.ahead else train(step, options.train)
    for i in range(options.steps):
        print(f"step {i} {digest(step(i))}", flush=True)
        time.sleep(options.pause)
    print("done", flush=True)
