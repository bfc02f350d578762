"""Functions in one way (`app.py`): handing on, loading models, launches as functions become more, and one beside seven others."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services import Rekindle
from shared import wait_for

FILE = Path(__file__).resolve().parent / "app.py"
SIZES = {"nvidia": [1 << 20, 16 << 20, 256 << 20], "emulated": [64 << 10, 1 << 20, 4 << 20]}
MODEL_BYTES = {"nvidia": 256 << 20, "emulated": 2 << 20}
NOISE_BYTES = {"nvidia": 64 << 20, "emulated": 1 << 20}
SPINS = {"nvidia": 200_000, "emulated": 2_000}
COUNTS = {"nvidia": [1, 8, 16, 32, 48], "emulated": [1, 2, 4]}
ROUNDS, LAUNCHES, INSTANCES = 5, 200, 8
# Seconds until all programs have been told when to begin.
TOLD = 0.5


def kind(way):
    return "nvidia" if way.instance.gpu.startswith("nvidia") else "emulated"


def at_once(way, count, name, method, *arguments):
    """As many calls, each in an instance of its own."""
    with ThreadPoolExecutor(count) as pool:
        return [one.result() for one in [pool.submit(way.call, FILE, name, method, *arguments) for _ in range(count)]]


def handing(way):
    """Seconds from one function to the next: of all, of giving, and of taking."""
    way.start(FILE, {"Giver": 1, "Taker": 1})
    rows = []
    for size in SIZES[kind(way)]:
        expected = way.call(FILE, "Giver", "make", size // 4)
        hand_on(way)
        taken = [hand_on(way) for _ in range(ROUNDS)]
        wrong = sum(one.pop("sum") != expected for one in taken)
        rows.append({"bytes": size, "wrong": wrong, "seconds": {name: [one[name] for one in taken] for name in taken[0]}})
    return {"sizes": rows}


def hand_on(way):
    start = time.perf_counter()
    if isinstance(way, Rekindle):
        ref, give = way.call(FILE, "Giver", "put")
        take, total = way.call(FILE, "Taker", "get", ref)
        return {"whole": time.perf_counter() - start, "give": give, "take": take, "sum": total}
    handle, giving = way.begin_call(FILE, "Giver", "give", (), 1)
    (take, total), taking = way.begin_call(FILE, "Taker", "take", (handle,), 0)
    row = {"whole": time.perf_counter() - start, "give": giving["keep"], "take": taking["take"] + take, "sum": total}
    way.release(handle)
    return row


def loading(way):
    """Seconds until the models of instances that begin at once have come from the host's memory, of one and of eight."""
    way.start(FILE, {"Model": INSTANCES})
    row = {"bytes": MODEL_BYTES[kind(way)], "copied_s": {}, "wrong": 0}
    for count in (1, INSTANCES):
        row["copied_s"][str(count)] = []
        for _ in range(3):
            begin = time.time() + TOLD
            found = at_once(way, count, "Model", "reload", begin)
            row["copied_s"][str(count)].append([done - begin for done, _ in found])
            row["wrong"] += sum(not right for _, right in found)
    if isinstance(way, Rekindle):
        row["restored_s"] = []
        for _ in range(2):
            found, took = restored(way)
            row["restored_s"].append(took)
            row["wrong"] += sum(not right for _, right in found)
    return row


def restored(way):
    """From none: as many are restored at once, with their models."""
    service = f"{way.deployed[FILE].name}-Model"
    way.rest(way.deployed[FILE].name)
    wait_for(lambda: any(one["ready"] for one in way.instance.json("ps")["pool"]), "a worker that waits")
    way.keep(service)
    begin = time.time()
    way.instance("scale", service, "--min", INSTANCES, "--max", INSTANCES)
    # Each instance is kept until all of them are there, so that each answers one call.
    found = at_once(way, INSTANCES, "Model", "there", 3.0)
    return found, [done - begin for done, _ in found]


def forwarding(way):
    """Microseconds of launches of an empty kernel, in so many functions that launch at once."""
    counts = COUNTS[kind(way)]
    if not isinstance(way, Rekindle):
        # Each has a context, or all have one interpreter.
        counts = [count for count in counts if count <= 8] if way.store == "host" else counts[:1]
    rows = []
    for count in counts:
        more = count - sum(row["functions"] for row in rows[-1:])
        way.start(FILE, {"Launcher": count if isinstance(way, Rekindle) else more})
        begin = time.time() + TOLD + 0.02 * count
        found = at_once(way, count, "Launcher", "burst", LAUNCHES, begin)
        rows.append({"functions": count, "microseconds": {name: [one[name] for one in found] for name in found[0]}})
    return {"counts": rows}


def beside(way, seconds):
    """Milliseconds of a little request in one function, alone and while seven others copy and compute."""
    if isinstance(way, Rekindle) and FILE in way.deployed:
        way.rest(way.deployed[FILE].name)
    way.start(FILE, {"Quiet": 1, "Noisy": 7})
    row, wrong = {}, 0
    for name, noise in (("alone_ms", 0), ("beside_ms", 7)):
        until, row[name] = time.time() + seconds, []
        with ThreadPoolExecutor(8) as pool:
            others = [pool.submit(way.call, FILE, "Noisy", "disturb", until, SPINS[kind(way)]) for _ in range(noise)]
            time.sleep(0.2)
            while time.time() < until - 0.1:
                times, right = way.call(FILE, "Quiet", "ask", 20, 0.001)
                row[name] += times
                wrong += not right
            rounds = [one.result() for one in others]
    return row | {"noise_rounds": rounds, "noise_bytes": NOISE_BYTES[kind(way)], "wrong": wrong}
