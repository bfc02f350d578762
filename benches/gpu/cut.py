"""Images of programs that go on: a training run that is imaged again and again, and a service that is imaged under load. Each with
its memory written beside the program, with that of the GPU alone, and with the program standing still for both."""

import threading
import time
from pathlib import Path

from images import ask
from programs import python_program, wait_for
from rekindle import Rekindle

WAYS = {
    "beside": {},
    "GPU beside": {"REKINDLE_TUNING": "cpu.precopy=off"},
    "still": {"REKINDLE_TUNING": "cpu.precopy=off,gpu.shadow=off"},
}
TRAINED = "gpt2-large-train"
SERVED = "gpt2-large"
# Steps before anything is measured, of the rate without images, and between two images.
WARM, BASE, EVERY = 6, 20, 10
IMAGES = 5
REQUESTS = 120


def rows(file):
    """Step, when it was done, digest; the last line may be in the making."""
    lines = Path(file).read_text().split("\n")[:-1] if Path(file).exists() else []
    return [(int(i), float(at), digest) for i, at, digest in (line.split() for line in lines)]


def wait_for_step(rekindle, name, file, count, limit=120):
    wait_for(lambda: len(rows(file)) >= count or not rekindle.sandbox(name)["pid"], limit, f"step {count} of {name}")
    if len(rows(file)) < count:
        raise RuntimeError("it has ended: " + " | ".join(rekindle.lines(name)[-5:])[-900:])


def training(rekindle, way, work):
    """Images every so many steps: how long each stops the program, what steps lose, and whether the last comes back as it was."""
    label = way.replace(" ", "-")
    name, file = f"train-{label}", work / f"train-{label}"
    rekindle.run(name, *python_program(TRAINED, "--train", file))
    wait_for_step(rekindle, name, file, WARM + BASE)
    base = rows(file)[WARM : WARM + BASE]
    step = (base[-1][1] - base[0][1]) / (len(base) - 1)
    reports, began, first = [], time.time(), len(rows(file))
    for number in range(IMAGES):
        wait_for_step(rekindle, name, file, first + number * EVERY)
        reports.append({"at": time.time(), **rekindle.json("checkpoint", name, "--to", f"{name}-{number}", "--leave-running"), "done": time.time()})
        if number:
            rekindle("rmi", f"{name}-{number - 1}")
    wait_for_step(rekindle, name, file, len(rows(file)) + 1)
    seen = rows(file)
    with_images = [row for row in seen if row[1] >= began]
    took = with_images[-1][1] - with_images[0][1]
    lost = [lost_by(seen, report, step) for report in reports]
    rekindle("kill", name)
    return {
        **gone_on(rekindle, name, f"{name}-{IMAGES - 1}", file),
        "step_s": step,
        "steps": len(with_images) - 1,
        "throughput": step * (len(with_images) - 1) / took,
        "lost_s": lost,
        "stopped_s": [report["stopped_us"] / 1e6 for report in reports],
        "checkpoints": reports,
    }


def gone_on(rekindle, name, image, file):
    """Restores the image of a run that has ended, and compares the steps that follow with those that the run had. The image goes."""
    before = {i: digest for i, _, digest in rows(file)}
    file.unlink()
    restored = rekindle.restore(image, f"{name}-restored")
    wait_for_step(rekindle, f"{name}-restored", file, 3)
    again = {i: digest for i, _, digest in rows(file)}
    rekindle("kill", f"{name}-restored")
    rekindle("rmi", image)
    common = sorted(set(before) & set(again))
    ok = len(common) > 0 and all(before[i] == again[i] for i in common)
    return {"ok": ok, "steps_compared": len(common), "restore": restored}


def lost_by(seen, report, step):
    """What the steps that it met took beyond their time."""
    met = [(before, after) for (_, before, _), (_, after, _) in zip(seen, seen[1:]) if after > report["at"] and before < report["done"]]
    return sum(after - before - step for before, after in met)


def service(rekindle, way, work):
    """Requests one after the other, without an image and while images are taken."""
    label = way.replace(" ", "-")
    name, trigger = f"service-{label}", work / f"service-{label}-ask"
    rekindle.run(name, *python_program(SERVED, "--serve", trigger))
    wait_for(lambda: "ready" in rekindle.lines(name) or not rekindle.sandbox(name)["pid"], 120, name)
    quiet = [ask(trigger)[0] for _ in range(REQUESTS)]
    reports, over = [], threading.Event()

    def take():
        for number in range(2):
            reports.append(rekindle.json("checkpoint", name, "--to", f"{name}-{number}", "--leave-running"))
        over.set()

    taker = threading.Thread(target=take)
    taker.start()
    busy, answers = [], set()
    while not over.is_set() and taker.is_alive():
        seconds, answer = ask(trigger)
        busy.append(seconds)
        answers.add(answer)
    taker.join()
    rekindle("kill", name)
    restored = rekindle.restore(f"{name}-1", f"{name}-restored")
    answer = ask(trigger)[1]
    images = [rekindle.json("inspect", f"{name}-{number}") for number in range(2)]
    rekindle("kill", f"{name}-restored")
    rekindle("rmi", f"{name}-0", f"{name}-1")
    return {
        "ok": len(reports) == 2 and answer in answers,
        "quiet_s": quiet,
        "busy_s": busy,
        "stopped_s": [report["stopped_us"] / 1e6 for report in reports],
        "sizes": [image["sizes"] for image in images],
        "cpu_written": [cpu_written(image) for image in images],
        "checkpoints": reports,
        "restore": restored,
    }


def cpu_written(image):
    """Bytes of its CPU half that no image before it has."""
    return sum(part["stored"] for part in image["parts"] if part["kind"].startswith("cpu") and not part.get("from"))


def measure(binaries, memory, work, note):
    """`note(name, rekindle, function)` keeps each row."""
    for way, environment in WAYS.items():
        with Rekindle(gpu="nvidia", binaries=binaries, state=memory / f"cut-{way.replace(' ', '-')}", **environment) as rekindle:
            note(f"training, {way}", rekindle, lambda: training(rekindle, way, work))
            note(f"service, {way}", rekindle, lambda: service(rekindle, way, work))
