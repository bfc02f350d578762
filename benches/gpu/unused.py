"""Images without what torch's allocator has free, and with it: a training run that is imaged every ten steps, and services that are
imaged twice and come back again and again."""

from cut import training
from images import ask
from programs import python_program, wait_for
from rekindle import Rekindle

WAYS = {"left out": {}, "kept": {"REKINDLE_TUNING": "gpu.unused=keep"}}
SERVED = ["resnet152", "gpt2-large"]
# Answers before each image, and restores of the second.
REQUESTS, RESTORES = 20, 8


def service(rekindle, way, work, program):
    """Seconds from the command to the first answer, and what the images have."""
    name = f"{program}-{way.replace(' ', '-')}"
    trigger = work / f"{name}-ask"
    rekindle.run(name, *python_program(program, "--serve", trigger))
    wait_for(lambda: "ready" in rekindle.lines(name) or not rekindle.sandbox(name)["pid"], 120, name)
    reports, answers = [], set()
    for number in range(2):
        answers |= {ask(trigger)[1] for _ in range(REQUESTS)}
        reports.append(rekindle.json("checkpoint", name, "--to", f"{name}-{number}", "--leave-running"))
    answers.add(ask(trigger)[1])
    rekindle("kill", name)
    restores, firsts, seen = [], [], set()
    for _ in range(RESTORES):
        restores.append(rekindle.restore(f"{name}-1", f"{name}-again"))
        seconds, answer = ask(trigger)
        firsts.append(seconds)
        seen.add(answer)
        rekindle("kill", f"{name}-again")
    sizes = [rekindle.json("inspect", f"{name}-{number}")["sizes"] for number in range(2)]
    rekindle("rmi", f"{name}-0", f"{name}-1")
    return {
        "ok": len(answers) == 1 and seen == answers,
        "checkpoints": reports,
        "sizes": sizes,
        "restores": [{"total_us": report["total_us"]} for report in restores],
        "first_answer_s": firsts,
    }


def measure(binaries, memory, work, note, only):
    """`note(name, rekindle, function)` keeps each row; `only` are names of rows."""
    for way, environment in WAYS.items():
        both = {f"training, {way}": lambda rekindle, way=way: training(rekindle, way, work)}
        for program in SERVED:
            both[f"{program}, {way}"] = lambda rekindle, way=way, program=program: service(rekindle, way, work, program)
        wanted = {name: what for name, what in both.items() if name in (only or both)}
        if wanted:
            with Rekindle(gpu="nvidia", binaries=binaries, state=memory / f"unused-{way.replace(' ', '-')}", **environment) as rekindle:
                for name, what in wanted.items():
                    note(name, rekindle, lambda what=what: what(rekindle))
