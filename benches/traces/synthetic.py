"""Synthetic invocations of functions, and files of them in the schemas of Azure's traces.

Mean rates follow a lognormal distribution through the two points that Shahrad et al. give for Azure Functions (USENIX ATC 2020,
section 3.3): 45 % of applications are invoked at most once an hour, 81 % at most once a minute. Durations follow the lognormal
that they fit to averages of functions (section 3.4: mean of the logarithm -0.38, deviation 2.36, seconds). The classes stand
for their section 3.3: timers, whose gaps do not vary, Poisson arrivals, and functions whose gaps vary more than those.
"""

import csv
import hashlib

import numpy

from traces.azure import MINUTES, OF_2019, OF_2021

# Of the rate in requests an hour: the lognormal's z at 0.45 and 0.81 are -0.126 and 0.878.
RATE_MEAN, RATE_DEVIATION = 0.513, 4.08
DURATION_MEAN, DURATION_DEVIATION, DURATION_MOST = -0.38, 2.36, 600.0
FILE_2019 = "invocations_per_function_md.anon.d01.csv"
FILE_2021 = "AzureFunctionsInvocationTraceForTwoWeeksJan2021.txt"


def sporadic(chance, rate, seconds):
    """Poisson arrivals; `rate` is in requests a second, here and below."""
    return numpy.sort(chance.uniform(0, seconds, chance.poisson(rate * seconds)))


def periodic(chance, rate, seconds):
    """A timer, a hundredth of its period early or late."""
    period = 1 / rate
    times = numpy.arange(chance.uniform(0, period), seconds, period)
    return times + chance.normal(0, period / 100, len(times))


def bursty(chance, rate, seconds):
    """Bursts at times of a Poisson process: a number of requests that is geometric, 20 in the mean, a hundred times as dense."""
    size = 20.0
    begins = chance.uniform(0, seconds, chance.poisson(rate * seconds / size))
    counts = chance.geometric(1 / size, len(begins))
    return numpy.sort(
        numpy.concatenate([begin + numpy.cumsum(chance.exponential(0.01 / rate, count)) for begin, count in zip(begins, counts)] or [[]])
    )


CLASSES = {"sporadic": (sporadic, "http"), "periodic": (periodic, "timer"), "bursty": (bursty, "queue")}


def invocations(functions, seconds, rates, seed):
    """`[(class, times), ...]`, each class as often as the others; `rates` bounds requests a minute."""
    found = []
    for number in range(functions):
        chance = numpy.random.default_rng([seed, number])
        rate = numpy.clip(numpy.exp(chance.normal(RATE_MEAN, RATE_DEVIATION)) / 60, *rates) / 60
        name = list(CLASSES)[number % len(CLASSES)]
        times = CLASSES[name][0](chance, rate, seconds)
        found.append((name, times[(times >= 0) & (times < seconds)]))
    return found


def name_of(*words):
    return "synthetic" + hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()[9:]


def write_2019(path, found, seed):
    """One day: what is later is left out. Functions that are not invoked are, as in Azure's."""
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*OF_2019, *range(1, MINUTES + 1)])
        for number, (name, times) in enumerate(found):
            counts = numpy.bincount((times // 60).astype(int), minlength=MINUTES)[:MINUTES]
            if counts.any():
                names = (name_of(what, seed, number) for what in ("owner", "app", "function"))
                rows.writerow([*names, CLASSES[name][1], *counts.tolist()])


def write_2021(path, found, seed):
    """In the order of ends, as Azure's is."""
    lines = []
    for number, (_, times) in enumerate(found):
        chance = numpy.random.default_rng([seed, number, 1])
        mean = min(DURATION_MOST, float(numpy.exp(chance.normal(DURATION_MEAN, DURATION_DEVIATION))))
        app, function = name_of("app", seed, number), name_of("function", seed, number)
        for time, duration in zip(times.tolist(), (mean * chance.lognormal(-0.02, 0.2, len(times))).round(3).tolist()):
            lines.append((time + duration, app, function, duration))
    lines.sort()
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(OF_2021)
        rows.writerows((app, function, f"{end:.6f}", f"{duration:.3f}") for end, app, function, duration in lines)
