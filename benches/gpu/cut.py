"""Images of programs that go on: a training run that is imaged again and again, and a service that is imaged under load. Each with
its memory written beside the program, with that of the GPU alone, and with the program standing still for both; the training run
by the driver's checkpoint with CRIU too. A training run that never waits for its GPU to rest is imaged in the same ways."""

import shutil
import threading
import time
from pathlib import Path

import baseline
from images import ask
from programs import Native, python_program, wait_for
from rekindle import Rekindle

WAYS = {
    "beside": {},
    "GPU beside": {"REKINDLE_TUNING": "cpu.precopy=off"},
    "still": {"REKINDLE_TUNING": "cpu.precopy=off,gpu.shadow=off"},
}
TRAINED = "gpt2-large-train"
# One that never waits for its GPU to rest, and how many steps that always has before it.
TRAINED_AHEAD, AHEAD = "encoder-train", 8
SERVED = "gpt2-large"
# Steps before anything is measured, of the rate without images, and between two images.
WARM, BASE, EVERY = 6, 20, 10
IMAGES = 5
# Each begun as soon as the one before is there.
WITHOUT_PAUSE = 3
REQUESTS = 120
# Answers between the second image of a service and the third.
BETWEEN = 100


def rows(file):
    """Step, when it was done, digest; the last line may be in the making."""
    lines = Path(file).read_text().split("\n")[:-1] if Path(file).exists() else []
    return [(int(i), float(at), digest) for i, at, digest in (line.split() for line in lines)]


def wait_for_step(rekindle, name, file, count, limit=120):
    wait_for(lambda: len(rows(file)) >= count or not rekindle.sandbox(name)["pid"], limit, f"step {count} of {name}")
    if len(rows(file)) < count:
        raise RuntimeError("it has ended: " + " | ".join(rekindle.lines(name)[-5:])[-900:])


def training_ahead(rekindle, way, work):
    """As `training`, of a program whose GPU never rests: some steps are always enqueued behind the one that it waits for."""
    return training(rekindle, way, work, TRAINED_AHEAD, AHEAD)


def training(rekindle, way, work, program=TRAINED, ahead=0):
    """Images every so many steps: how long each stops the program, what steps lose, and whether the last comes back as it was."""
    label = f"{way.replace(' ', '-')}-{ahead}"
    name, file = f"train-{label}", work / f"train-{label}"
    rekindle.run(name, *python_program(program, "--train", file, "--ahead", ahead))
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
    steps, throughput = rate_since(seen, began, step)
    lost = [lost_by(seen, report, step) for report in reports]
    without_pause = images_without_pause(rekindle, name, file, step)
    rekindle("kill", name)
    return {
        **gone_on(rekindle, name, f"{name}-{IMAGES - 1}", file),
        "step_s": step,
        "steps": steps,
        "throughput": throughput,
        "without_pause": without_pause,
        "lost_s": lost,
        "stopped_s": [report["stopped_us"] / 1e6 for report in reports],
        "checkpoints": reports,
    }


def rate_since(seen, began, step):
    """Steps since then, and their rate, where 1 is that without images."""
    since = [row for row in seen if row[1] >= began]
    return len(since) - 1, step * (len(since) - 1) / (since[-1][1] - since[0][1])


def images_without_pause(rekindle, name, file, step):
    """The rate while an image is always being made, from the first to the last of them."""
    began, took = time.time(), []
    for number in range(WITHOUT_PAUSE):
        took.append(rekindle.json("checkpoint", name, "--to", f"{name}-next-{number}", "--leave-running")["total_us"] / 1e6)
    steps, throughput = rate_since(rows(file), began, step)
    rekindle("rmi", *(f"{name}-next-{number}" for number in range(WITHOUT_PAUSE)))
    return {"took_s": took, "steps": steps, "throughput": throughput}


def training_by_driver(memory, work):
    """One image of it by the driver's own checkpoint with CRIU, after which it goes on: all of that it stands still."""
    file, images = work / "train-driver", memory / "driver-train"
    images.mkdir()
    driver = baseline.Driver()
    program = Native(python_program(TRAINED, "--train", file), work / "train-driver.log", start_new_session=True)
    try:
        wait_for(lambda: len(rows(file)) >= WARM + BASE or program.process.poll() is not None, 120, "the native training run")
        image = baseline.take(driver, program.process.pid, images, "--leave-running")
        image |= {f"driver_{name.lower()}_s": driver.step(name, program.process.pid) for name in ("Restore", "Unlock")}
        steps = len(rows(file))
        wait_for(lambda: len(rows(file)) >= steps + 2 or program.process.poll() is not None, 60, "it to go on")
        gone_on = program.process.poll() is None
    finally:
        program.end()
        shutil.rmtree(images)
    parts = [seconds for name, seconds in image.items() if name != "total_s"]
    return {"ok": gone_on, "stopped_s": [sum(parts)], "image": image}


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
    busy, answers = [], set()

    def take():
        for number in range(3):
            if number == 2:
                count = len(busy) + BETWEEN
                wait_for(lambda: len(busy) >= count, 120, "answers between two images")
            reports.append(rekindle.json("checkpoint", name, "--to", f"{name}-{number}", "--leave-running"))
        over.set()

    taker = threading.Thread(target=take)
    taker.start()
    while not over.is_set() and taker.is_alive():
        seconds, answer = ask(trigger)
        busy.append(seconds)
        answers.add(answer)
    taker.join()
    rekindle("kill", name)
    restored = rekindle.restore(f"{name}-2", f"{name}-restored")
    answer = ask(trigger)[1]
    again = [rekindle.json("checkpoint", f"{name}-restored", "--to", f"{name}-again-{number}", "--leave-running") for number in range(2)]
    rekindle("rmi", *(f"{name}-again-{number}" for number in range(2)))
    images = [rekindle.json("inspect", f"{name}-{number}") for number in range(3)]
    rekindle("kill", f"{name}-restored")
    rekindle("rmi", *(f"{name}-{number}" for number in range(3)))
    return {
        "ok": len(reports) == 3 and answer in answers,
        "quiet_s": quiet,
        "busy_s": busy,
        "stopped_s": [report["stopped_us"] / 1e6 for report in reports],
        "sizes": [image["sizes"] for image in images],
        "cpu_written": [cpu_written(image) for image in images],
        "checkpoints": reports,
        "restore": restored,
        "of_restored": again,
    }


def cpu_written(image):
    """Bytes of its CPU half that no image before it has."""
    return sum(part["stored"] for part in image["parts"] if part["kind"].startswith("cpu") and not part.get("from"))


PROGRAMS = {"training": training, "training ahead": training_ahead, "service": service}


def measure(binaries, memory, work, note, only):
    """`note(name, rekindle, function)` keeps each row; `only` are names of rows."""
    for way, environment in WAYS.items():
        both = {f"{name}, {way}": what for name, what in PROGRAMS.items()}
        wanted = {name: what for name, what in both.items() if name in (only or both)}
        if wanted:
            with Rekindle(gpu="nvidia", binaries=binaries, state=memory / f"cut-{way.replace(' ', '-')}", **environment) as rekindle:
                for name, what in wanted.items():
                    note(name, rekindle, lambda: what(rekindle, way, work))
    name = "training, driver"
    if name in (only or [name]):
        with Rekindle(gpu="nvidia", binaries=binaries, state=memory / "cut-driver") as rekindle:
            note(name, rekindle, lambda: training_by_driver(memory, work))
