"""Requests at their times, whether or not earlier ones have been answered (an open loop)."""

import threading
import time
from dataclasses import dataclass
from typing import Any


@dataclass
class Outcome:
    """What became of one request. Times are seconds from the replay's beginning."""

    due: float
    function: int
    # When it was made: later than due if this program was late.
    began: float | None = None
    # From when it was due to its answer or its failure.
    latency: float | None = None
    answer: Any = None
    error: str | None = None


def replay(load, call, patience=60.0):
    """Calls `call(function)` at each time, each in a thread of its own; the outcomes in the order of the load.

    `load` is what `arrivals` gives. A request that is not answered `patience` seconds after the last one was due has an error,
    and its thread is left to itself.
    """
    outcomes = [Outcome(due, function) for due, function in load]
    start = time.monotonic()
    threads = []
    for outcome in outcomes:
        time.sleep(max(0.0, start + outcome.due - time.monotonic()))
        thread = threading.Thread(target=ask, args=(outcome, call, start), daemon=True)
        thread.start()
        threads.append(thread)
    end = start + (outcomes[-1].due if outcomes else 0) + patience
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    # One that is answered from now on changes its own record, and not what is given back.
    return [given_up(outcome, patience) if outcome.latency is None else outcome for outcome in outcomes]


def given_up(outcome, patience):
    return Outcome(outcome.due, outcome.function, outcome.began, error=f"not answered {patience:g} s after the last request was due")


def ask(outcome, call, start):
    outcome.began = time.monotonic() - start
    try:
        outcome.answer = call(outcome.function)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.latency = time.monotonic() - start - outcome.due
