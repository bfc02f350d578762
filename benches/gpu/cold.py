"""A cold start, for comparison: the program from its first instruction to its first answer, files in the page cache."""

import statistics
import time

from programs import Native, python_program, steps_of, wait_for


def measure(name, work, rounds=3):
    """The first start warms the page cache and is not counted."""
    starts, digests = [], set()
    for n in range(rounds + 1):
        start = time.perf_counter()
        program = Native(python_program(name, "--steps", 1), work / f"{name}-cold.log")
        try:
            wait_for(lambda: steps_of(program.lines()) or program.process.poll() is not None, 120, f"cold {name}")
            seconds = time.perf_counter() - start
            digests.update(steps_of(program.lines()).values())
        finally:
            program.end()
        if n:
            starts.append(seconds)
    return {"ok": len(digests) == 1, "starts_s": starts, "first_answer_s": statistics.median(starts)}
