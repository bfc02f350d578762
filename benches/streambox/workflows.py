"""The three workflows in one way: what further instances cost, how many answers a second, and how long each takes under load."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
from answers import agree
from shared import module_of
from traces import replay, synthetic

KINDS = {"sporadic": synthetic.sporadic, "periodic": synthetic.periodic, "bursty": synthetic.bursty}
SEEDS = range(4)
# Of the rate that one thread of one program answers at.
SHARE_OF_RATE = 0.4
# What instances are added of: the workflow and the function; and how many: a native program takes its time.
FURTHER, RESTORED, ADDED = ("image", "Faces"), 5, 1


class Asked:
    """A workflow in one way, with the answers that are expected."""

    def __init__(self, way, file, expected):
        self.way, self.file, self.expected = way, file, expected
        module = module_of(file)
        self.flow, self.requests = module.flow, [module.request(seed) for seed in SEEDS]
        self.wrong, self.turn = 0, threading.Lock()

    def ask(self, number):
        """Seconds that the answer took."""
        at = number % len(self.requests)
        start = time.perf_counter()
        found = self.way.flow(self.file, self.flow, self.requests[at])
        took = time.perf_counter() - start
        if not agree(found, self.expected[at]):
            with self.turn:
                self.wrong += 1
        return took


def start(way, files, asked, before):
    """All functions of all workflows; then further instances of one. `before`: bytes of GPU memory in use when nothing runs."""
    began = time.perf_counter()
    with ThreadPoolExecutor(len(files)) as pool:
        for one in [pool.submit(way.start, file) for file in files.values()]:
            one.result()
    started = time.perf_counter() - began
    first = {name: one.ask(0) for name, one in asked.items()}
    for one in asked.values():
        for number in range(1, len(SEEDS)):
            one.ask(number)
    everything = way.gpu_bytes()
    functions = sum(len(module_of(file).app.declarations) for file in files.values())
    row = {"functions": functions, "started_s": started, "first_answers_s": first, "gpu_bytes": everything - before, "further": []}
    if hasattr(way, "contexts"):
        row["contexts"] = way.contexts()
    workflow, function = FURTHER
    if workflow in files:
        for _ in range(RESTORED if hasattr(way, "contexts") else ADDED):
            row["further"].append(further(way, files[workflow], function))
    return row | {"wrong": sum(one.wrong for one in asked.values())}


def further(way, file, function):
    time.sleep(0.5)
    before = way.gpu_bytes()
    added = way.add(file, function)
    time.sleep(0.5)
    return added | {"gpu_bytes": way.gpu_bytes() - before}


def throughput(asked, seconds, clients):
    """Answers a second when so many clients ask again as soon as they have their answer."""
    until, times, errors = time.perf_counter() + seconds, [], []
    wrong = asked.wrong

    def client(number):
        try:
            while time.perf_counter() < until:
                times.append(asked.ask(number))
                number += 1
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    began = time.perf_counter()
    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    row = {"clients": clients, "seconds": took, "per_s": len(times) / took, "latencies_s": times}
    return row | {"wrong": asked.wrong - wrong, "errors": errors}


def load(asked, kind, rate, seconds, seed=0):
    """Latencies from when each request was due, at arrivals of this kind."""
    wrong = asked.wrong
    for chance in range(seed, seed + 100):
        times = KINDS[kind](numpy.random.default_rng(chance), rate, seconds)
        times = times[(times >= 0) & (times < seconds)]
        # One in which so many come as the rate says: few bursts fall into a few seconds, or many.
        if abs(len(times) - rate * seconds) <= max(2, 0.25 * rate * seconds):
            break
    outcomes = replay([(float(time), number) for number, time in enumerate(times)], asked.ask, patience=30)
    row = {"rate": rate, "seconds": seconds, "seed": chance, "due_s": [one.due for one in outcomes]}
    row["latencies_s"] = [one.latency for one in outcomes if one.error is None]
    return row | {"wrong": asked.wrong - wrong, "errors": [one.error for one in outcomes if one.error]}
