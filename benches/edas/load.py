"""The same load for all ways, and whether an answer is right."""

import itertools
import threading
import time

import catalogue
from traces import arrivals, replay, synthetic

# Of the synthetic trace that the load is chosen from, if no other is given.
FUNCTIONS, HOURS, RATES = 1500, 0.5, (0.01, 600.0)


def synthetic_trace(directory, seed):
    """A file in the schema of Azure's trace of 2021."""
    found = synthetic.invocations(FUNCTIONS, 3600 * HOURS, RATES, seed)
    path = directory / synthetic.FILE_2021
    synthetic.write_2021(path, found, seed)
    return path


def requests(path, rows, seconds, rates, seed):
    """`[(second, function, request), ...]`: who computes least has the trace's function that is called most often."""
    found = arrivals(path, len(rows), seconds, rates=rates, seed=seed)
    counts = [sum(number == other for _, other in found) for number in range(len(rows))]
    busy = sorted(range(len(rows)), key=lambda number: -counts[number])
    quick = sorted(rows, key=lambda name: min(rows[name]["compute_s"]))
    names = dict(zip(busy, quick))
    order = itertools.count()
    return [(second, names[number], next(order) % catalogue.REQUESTS) for second, number in found]


def is_right(row, request, answer):
    """Whether it is the reference answer; what differs is a part of the mean of the absolute numbers."""
    expected = row["answers"][request]
    allowed = row["tolerance"] * expected[1]
    return len(answer) == len(expected) and all(abs(one - other) <= allowed for one, other in zip(answer, expected))


def asked(rows, call, name, request, due):
    """One request's row."""
    start = time.perf_counter()
    row = {"function": name, "request": request, "due": due}
    try:
        found = call(name, request)
        row["right"] = is_right(rows[name], request, found.pop("answer"))
        row |= found
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    row["latency"] = time.perf_counter() - start
    return row


def open_loop(rows, load, call, patience):
    """A row for each request of the load; latencies are from when a request was due."""
    ordered = [(second, (second, name, request)) for second, name, request in load]
    outcomes = replay(ordered, lambda what: asked(rows, call, what[1], what[2], what[0]), patience)
    found = []
    for (due, name, request), outcome in zip(load, outcomes):
        row = outcome.answer or {"function": name, "request": request, "due": due, "error": outcome.error}
        found.append(row | {"latency": outcome.latency})
    return found


def closed_loop(rows, names, call, clients, seconds, patience):
    """Each of so many clients asks all functions in turn, one request after the other: right answers a second, and how long each took.

    What is not answered `patience` seconds after the end is left to itself.
    """
    found, turn, end = [], threading.Lock(), time.monotonic() + seconds
    start = time.monotonic()

    def client(number):
        for at in itertools.count(number):
            if time.monotonic() >= end:
                return
            row = asked(rows, call, names[at % len(names)], at % catalogue.REQUESTS, time.monotonic() - start)
            row["ended"] = time.monotonic() - start
            with turn:
                found.append(row)

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end + patience - time.monotonic()))
    with turn:
        there = list(found)
    right = [row for row in there if row.get("right")]
    return {
        "clients": clients,
        "seconds": seconds,
        "answers_per_second": sum(row["ended"] <= seconds for row in right) / seconds,
        "wrong": sum(row.get("right") is False for row in there),
        "failed": sum("right" not in row for row in there),
        "latencies": {name: [row["latency"] for row in right if row["function"] == name] for name in names},
    }
