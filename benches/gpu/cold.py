"""Cold starts: the program from its first instruction to its first answer, native and in a sandbox in turn, files in the page
cache."""

import statistics
import time

from programs import Native, python_program, steps_of, wait_for


def measure(rekindle, name, work, rounds=3):
    """The first start of each warms the page cache and is not counted."""
    starts, digests = {"native": [], "sandbox": []}, set()
    for n in range(rounds + 1):
        for side, start in (("native", native), ("sandbox", sandboxed)):
            seconds, answers = start(rekindle, name, work)
            digests.update(answers)
            if n:
                starts[side].append(seconds)
    return {
        "ok": len(digests) == 1,
        "starts_s": starts["native"],
        "first_answer_s": statistics.median(starts["native"]),
        "sandbox_starts_s": starts["sandbox"],
        "ratio": statistics.median(starts["sandbox"]) / statistics.median(starts["native"]),
    }


def native(_, name, work):
    began = time.perf_counter()
    program = Native(python_program(name, "--steps", 1), work / f"{name}-cold.log")
    try:
        wait_for(lambda: steps_of(program.lines()) or program.process.poll() is not None, 120, f"cold {name}")
        return time.perf_counter() - began, steps_of(program.lines()).values()
    finally:
        program.end()


def sandboxed(rekindle, name, _):
    label, began = f"{name}-cold", time.perf_counter()
    rekindle.run(label, *python_program(name, "--steps", 1))
    try:
        wait_for(lambda: steps_of(rekindle.lines(label)) or not rekindle.sandbox(label)["pid"], 120, f"cold {name} in a sandbox")
        return time.perf_counter() - began, steps_of(rekindle.lines(label)).values()
    finally:
        rekindle("kill", label, check=False)
