"""Arrival times from the two traces that Azure Functions has published, or from synthetic ones of their schemas.

2019 (Shahrad et al., "Serverless in the Wild", USENIX ATC 2020): `invocations_per_function_md.anon.dNN.csv`, a line a function,
with how often it was invoked in each minute of a day. When in the minute is not known: times are drawn uniformly.

    HashOwner,HashApp,HashFunction,Trigger,1,...,1440

2021 (Zhang et al., "Faster and Cheaper Serverless Computing on Harvested Resources", SOSP 2021):
`AzureFunctionsInvocationTraceForTwoWeeksJan2021.txt`, a line an invocation, times in seconds from the trace's beginning.

    app,func,end_timestamp,duration
"""

import csv
import math
import random
from collections import defaultdict
from pathlib import Path

MINUTES = 1440
OF_2019 = ["HashOwner", "HashApp", "HashFunction", "Trigger"]
OF_2021 = ["app", "func", "end_timestamp", "duration"]


class TraceError(Exception):
    """What is wrong with a trace, or with what is wanted of it."""


def arrivals(path, functions, seconds, scale=1.0, start=0.0, rates=(0.0, math.inf), seed=0):
    """`[(second, function), ...]` in order, of so many functions, numbered from 0, over so many seconds.

    The window is what the trace has from its second `start` on, `seconds * scale` long, played `scale` times as fast. The
    functions are chosen at random among those that are called in it, and whose mean rate as played, in requests a minute, is
    within `rates`. The same arguments give the same arrivals. Raises TraceError.
    """
    if seconds <= 0 or scale <= 0 or start < 0 or functions < 1:
        raise TraceError("give at least one function, a scale and seconds above 0, and a start that is not below 0")
    chance = random.Random(seed)
    minutes = seconds / 60
    chosen = [times for times in window(path, start, seconds * scale, chance) if rates[0] <= len(times) / minutes <= rates[1]]
    if len(chosen) < functions:
        wanted = f"{functions} functions with {rates[0]:g} to {rates[1]:g} requests a minute in seconds {start:g} to {start + seconds * scale:g}"
        raise TraceError(f"{path} has {len(chosen)} and not {wanted}; give another start, scale, rates, or fewer functions")
    numbered = enumerate(chance.sample(chosen, functions))
    return sorted(((time - start) / scale, number) for number, times in numbered for time in times)


def window(path, start, length, chance):
    """The times of each function that is called there, in seconds of the trace, in an order that the file gives."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        head = next(rows, [])
        if head[:4] == OF_2019 and len(head) == 4 + MINUTES:
            found = of_2019(path, rows, start, length, chance)
        elif head == OF_2021:
            found = of_2021(path, rows, start, length)
        else:
            shown = ",".join(head[:5]) or "nothing"
            raise TraceError(f"{path} begins with {shown}; expected the columns of Azure's trace of 2019 or of 2021")
        return [sorted(times) for times in found if times]


def of_2019(path, rows, start, length, chance):
    end = start + length
    if end > 60 * MINUTES:
        raise TraceError(f"{path} has one day, and seconds {start:g} to {end:g} are wanted; give an earlier start, or a smaller scale")
    first, last = int(start // 60), math.ceil(end / 60)
    for line, row in enumerate(rows, 2):
        try:
            counts = [int(count) for count in row[4 + first : 4 + last]]
            if len(row) != 4 + MINUTES or min(counts) < 0:
                raise ValueError
        except ValueError:
            raise TraceError(f"{path}, line {line}: expected {MINUTES} counts behind four names") from None
        times = [60 * (first + minute) + 60 * chance.random() for minute, count in enumerate(counts) for _ in range(count)]
        yield [time for time in times if start <= time < end]


def of_2021(path, rows, start, length):
    found = defaultdict(list)
    for line, row in enumerate(rows, 2):
        try:
            app, function, end, duration = row
            time = float(end) - float(duration)
        except ValueError:
            raise TraceError(f"{path}, line {line}: expected an app, a function and two numbers of seconds") from None
        if start <= time < start + length:
            found[app, function].append(time)
    return found.values()


def variation(times):
    """The coefficient of variation of the gaps: 0 of a clock, 1 of a Poisson process. None of fewer than three times."""
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    if len(gaps) < 2 or not (mean := sum(gaps) / len(gaps)):
        return None
    return math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean


def summary(functions, seconds):
    """Quantiles over functions, each a list of times in order: requests a minute, and the variation of gaps."""
    rates = sorted(60 * len(times) / seconds for times in functions)
    variations = sorted(value for times in functions if (value := variation(times)) is not None)
    shares = {"least": 0, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p99": 0.99, "most": 1}
    at = lambda values, share: values[min(len(values) - 1, int(len(values) * share))] if values else None
    rows = {"requests a minute": rates, "variation of gaps": variations}
    return {name: {label: at(values, share) for label, share in shares.items()} for name, values in rows.items()}


def printed(functions, seconds):
    """The summary as lines of text."""
    found = summary(functions, seconds)
    labels = list(next(iter(found.values())))
    lines = [f"{len(functions)} functions, {sum(map(len, functions))} requests", f"{'':20}" + "".join(f"{label:>10}" for label in labels)]
    for name, row in found.items():
        lines.append(f"{name:20}" + "".join(f"{'-' if row[label] is None else format(row[label], '.3g'):>10}" for label in labels))
    return lines


def per_function(load):
    """The times of each function of what `arrivals` gives."""
    found = defaultdict(list)
    for time, function in load:
        found[function].append(time)
    return [found[function] for function in sorted(found)]


def of_file(path):
    """The times of each function over all of the file, and how many seconds that is."""
    with open(path, encoding="utf-8") as file:
        whole = 60 * MINUTES if file.readline().startswith(OF_2019[0]) else math.inf
    functions = window(Path(path), 0.0, whole, random.Random(0))
    if not functions:
        raise TraceError(f"{path} has no invocation")
    return functions, min(whole, max(times[-1] for times in functions))
