"""Restores by waiting workers, which have a context and nothing else: one program with modules whole and in pieces, without
a worker, beside programs that start and end; and many images in turn."""

import subprocess
import sys
import time

from images import ask
from programs import label, served_program, wait_for
from rekindle import Rekindle

ENVIRONMENT = {"REKINDLE_POOL_LIMIT": "8"}
SERVICE = "llama"
TURNS = ["llama", "gpt2-large", "opt-350m", "bert-base", "resnet152", "resnet18", "hello"]
TURNS += ["opt-350m,2", "bert-base,2", "resnet152,2", "resnet18,2", "hello,2"]
ROUNDS = 2
NEIGHBOURS = 2
NEIGHBOUR = "import torch; x = torch.randn(4096, 4096, device='cuda'); print((x @ x).sum().item())"


def make(rekindle, names, work):
    """Images of services that have answered; their answers, and what their code is like."""
    triggers = {name: work / f"{label(name)}-{rekindle.state.name}-ask" for name in names}
    for name in names:
        rekindle.run(label(name), *served_program(name, triggers[name]))
    made = {}
    for name in names:
        wait_for(lambda: "ready" in rekindle.lines(label(name)) or not rekindle.sandbox(label(name))["pid"], 240, name)
        ask(triggers[name])
        warm, answer = ask(triggers[name])
        report = rekindle.json("checkpoint", label(name), "--to", label(name), "--stop")
        code = rekindle.json("inspect", label(name))["code"]
        made[name] = {"trigger": triggers[name], "answer": answer, "warm_answer_s": warm, "checkpoint": report, "code": code}
    return made


def wait_for_worker(rekindle):
    wait_for(lambda: any(one["ready"] for one in rekindle.json("ps")["pool"]), 30, "a worker that waits")


def restore(rekindle, name, image, wait=True):
    if wait:
        wait_for_worker(rekindle)
    restored, began = f"{label(name)}-restored", time.perf_counter()
    report = rekindle.restore(label(name), restored)
    running = time.perf_counter() - began
    _, answer = ask(image["trigger"])
    first = time.perf_counter() - began
    again, _ = ask(image["trigger"])
    rekindle("kill", restored)
    return {
        "program": name,
        "running_s": running,
        "first_answer_s": first,
        "warm_answer_s": again,
        "same": answer == image["answer"],
        "report": report,
    }


def settle(rekindle):
    """What was killed has gone from the GPU, and workers are there again."""
    wait_for_worker(rekindle)
    time.sleep(1)


def quiet(rekindle, name, image, count):
    rows = []
    for _ in range(count):
        settle(rekindle)
        rows.append(restore(rekindle, name, image))
    return rows


def beside_others(rekindle, name, image, count):
    """While torch programs start and end in a loop."""
    loop = f'while true; do {sys.executable} -c "{NEIGHBOUR}"; done'
    others = [subprocess.Popen(["bash", "-c", loop], stdout=subprocess.DEVNULL, process_group=0) for _ in range(NEIGHBOURS)]
    try:
        time.sleep(5)
        rows = []
        for _ in range(count):
            wait_for_worker(rekindle)
            time.sleep(1.3)
            rows.append(restore(rekindle, name, image))
        return rows
    finally:
        for other in others:
            subprocess.run(["kill", "-9", "--", f"-{other.pid}"])
            other.wait()


def row(image, restores):
    told = {key: value for key, value in image.items() if key != "trigger"}
    return {"ok": all(one["same"] for one in restores), **told, "restores": restores}


def measure(binaries, memory, work, note, ways=("whole", "pieces"), counts=(5, 3, 12)):
    """`note(name, rekindle, function)` keeps each row."""
    usual, without, busy = counts
    for way in ways:
        state = memory / f"anywhere-{way}"
        with Rekindle(gpu="nvidia", binaries=binaries, state=state, REKINDLE_TUNING=f"gpu.code={way}", REKINDLE_POOL="2", **ENVIRONMENT) as rekindle:
            made = {}
            note(
                f"{SERVICE}, {way}",
                rekindle,
                lambda: made.update(make(rekindle, [SERVICE], work)) or row(made[SERVICE], quiet(rekindle, SERVICE, made[SERVICE], usual)),
            )
            if SERVICE in made:
                note(f"{SERVICE}, {way}, beside others", rekindle, lambda: row(made[SERVICE], beside_others(rekindle, SERVICE, made[SERVICE], busy)))
        with Rekindle(gpu="nvidia", binaries=binaries, state=state, REKINDLE_TUNING=f"gpu.code={way}", REKINDLE_POOL="0", **ENVIRONMENT) as rekindle:
            if SERVICE in made:
                begun = lambda: [restore(rekindle, SERVICE, made[SERVICE], wait=False) for _ in range(without)]
                note(f"{SERVICE}, {way}, no worker", rekindle, lambda: row(made[SERVICE], begun()))
    with Rekindle(gpu="nvidia", binaries=binaries, state=memory / "anywhere-turns", REKINDLE_POOL="2", **ENVIRONMENT) as rekindle:
        note("in turn", rekindle, lambda: in_turn(rekindle, work))


def in_turn(rekindle, work):
    made = make(rekindle, TURNS, work)
    settle(rekindle)
    rows = [restore(rekindle, name, made[name]) for _ in range(ROUNDS) for name in TURNS]
    codes = {name: image["code"] for name, image in made.items()}
    return {"ok": all(one["same"] for one in rows), "code": codes, "restores": rows}
