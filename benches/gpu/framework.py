"""Apps that start from a framework image against the same apps started by themselves: the start, what their images have of
their own, and how fast those are restored."""

import sys
import time

from images import ask
from pages import workers_wait
from programs import python_program, wait_for

IMAGE = "framework"
# What transformers loads only when a model is made is named.
LAZY = ("transformers.modeling_utils", "transformers.generation.utils", "transformers.models.gpt2.modeling_gpt2")
IMPORTS = ("numpy", "torch", "torchvision", "transformers", *LAZY)


def make(rekindle):
    """The framework image, unless it is there; its report."""
    options = [word for name in IMPORTS for word in ("--import", name)]
    return rekindle.json("image", "framework", IMAGE, "--gpu", rekindle.gpu, "--python", sys.executable, *options)


def sizes(rekindle, image):
    """Bytes: what the image takes, of that what no other image has, and its parts by kind."""
    row = next(row for row in rekindle.json("images")["images"] if row["name"] == image)
    kinds = {}
    for part in rekindle.json("inspect", image)["parts"]:
        kind = part["kind"] + (" of another image" if part["from"] else "")
        kinds[kind] = kinds.get(kind, 0) + part["stored"]
    return {"stored": row["sizes"]["stored"], "own": row["sizes"]["stored"] - row["shared_bytes"], "stored_by_kind": kinds, "sizes": row["sizes"]}


def start(rekindle, label, way, name, trigger):
    """Seconds from the command to the program's word that it is ready, and the bytes of its weights."""
    began = time.perf_counter()
    begin = ["run", "-d", "--name", label, *(["--from", IMAGE] if way == "framework" else []), "--gpu", rekindle.gpu, "--"]
    rekindle(*begin, *python_program(name, "--serve", trigger, "--trim"))
    wait_for(lambda: "ready" in rekindle.lines(label) or not rekindle.sandbox(label)["pid"], 120, f"{name}, {way}")
    seconds = time.perf_counter() - began
    lines = rekindle.lines(label)
    if "ready" not in lines:
        raise RuntimeError(f"{name}, {way}, ended: {' | '.join(lines[-5:])}")
    weights = [int(line.split()[1]) for line in lines if line.startswith("weights ")]
    return seconds, sum(weights)


def restores(rekindle, image, trigger, rounds):
    rows = []
    for n in range(rounds):
        restored = f"{image}-{n}"
        wait_for(lambda: workers_wait(rekindle), 30, "the workers of the pool")
        began = time.perf_counter()
        report = rekindle.restore(image, restored)
        running = time.perf_counter() - began
        _, answer = ask(trigger)
        first = time.perf_counter() - began
        again, _ = ask(trigger)
        rows.append({"running_s": running, "first_answer_s": first, "warm_answer_s": again, "answer": answer, "report": report})
        rekindle("kill", restored)
    return rows


def measure(rekindle, name, work, rounds=5):
    """First from the framework image: an image's own size is told while no other app's image is there."""
    row = {"measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "start_s": {}, "checkpoint": {}, "image": {}, "restores": {}}
    for way in ("framework", "alone"):
        trigger, image = work / f"{name}-{way}-ask", f"{name}-{way}"
        wait_for(lambda: workers_wait(rekindle), 30, "the workers of the pool")
        row["start_s"][way], row["weights_bytes"] = start(rekindle, image, way, name, trigger)
        row["checkpoint"][way] = rekindle.json("checkpoint", image, "--to", image, "--stop")
        row["image"][way] = sizes(rekindle, image)
        row["restores"][way] = restores(rekindle, image, trigger, rounds)
        rekindle("rmi", image)
    answers = {one["answer"] for rows in row["restores"].values() for one in rows}
    row["ok"] = len(answers) == 1
    row["own_above_weights_bytes"] = row["image"]["framework"]["own"] - row["weights_bytes"]
    return row
