"""A service that is asked without a pause while it moves from one GPU to another and back: for how long it stands still, what is
copied when, and whether its answers stay as they were. By each way that its memory can take.
"""

import statistics
import threading

from images import ask
from programs import start_service, wait_for
from rekindle import Rekindle

SERVED = ["resnet152", "gpt2-large", "llama-20gb"]
GPUS = ("nvidia:0", "nvidia:1")
# The GPUs by themselves; in rounds through the host's memory; and that while all stands still.
WAYS = {"direct": (), "rounds": ("--rounds", 4), "still": ("--rounds", 0)}
QUIET = 50
# There and back.
TRIPS = 2


def move(rekindle, label, there, options, trigger):
    """Has it move under load: the report, and what the requests met."""
    reports, errors, seconds, answers = [], [], [], set()

    def migrate():
        try:
            reports.append(rekindle.json("migrate", label, "--gpu", there, *options))
        except Exception as error:
            errors.append(error)

    mover = threading.Thread(target=migrate)
    mover.start()
    while mover.is_alive():
        took, answer = ask(trigger)
        seconds.append(took)
        answers.add(answer)
    mover.join()
    if errors:
        raise errors[0]
    took, answer = ask(trigger)
    answers.add(answer)
    # The other GPU has its memory back only then.
    wait_for(lambda: len(rekindle.sandbox(label)["workers"]) == 1, 30, "the end of the worker before")
    return {"report": reports[0], "busy_s": seconds, "longest_s": max(seconds), "first_after_s": took, "answers": sorted(answers)}


def service(rekindle, name, work):
    trigger, label = work / f"{name}-migrate-ask", f"migrate-{name}"
    start_service(rekindle, label, name, trigger)
    quiet = [ask(trigger) for _ in range(QUIET)]
    expected, usual = {answer for _, answer in quiet}, statistics.median(took for took, _ in quiet)
    row = {"ok": len(expected) == 1, "quiet_s": [took for took, _ in quiet], "ways": {}, "still_s": {}}
    for way, options in WAYS.items():
        moves = row["ways"][way] = []
        for there in (GPUS[1], GPUS[0]) * TRIPS:
            moves.append(move(rekindle, label, there, options, trigger))
            row["ok"] &= set(moves[-1]["answers"]) == expected
        row["still_s"][way] = {
            "stopped": statistics.median(one["report"]["stopped_us"] / 1e6 for one in moves),
            "requests": statistics.median(one["longest_s"] - usual for one in moves),
        }
        print(f"{name:12} {way:8} {row['still_s'][way]} took {[one['report']['way'] for one in moves]}", flush=True)
    rekindle("kill", label)
    return row


def measure(binaries, memory, work, note, only):
    """`note(name, rekindle, function)` keeps each row."""
    with Rekindle(gpu=GPUS[0], binaries=binaries, state=memory / "migrate") as rekindle:
        for name in [name for name in SERVED if name in (only or SERVED)]:
            note(name, rekindle, lambda name=name: service(rekindle, name, work))
