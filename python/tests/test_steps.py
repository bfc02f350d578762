"""Steps that a program tells by the package."""

import sys

import rekindle as package

PROGRAM = """
import sys, time
from pathlib import Path
import rekindle
limit = Path(sys.argv[1])
for step in range(1, 1000):
    while step > int(limit.read_text() or 0):
        time.sleep(0.01)
    print(step, flush=True)
    rekindle.step()
"""


def test_an_image_is_taken_after_so_many_steps_of_the_package(rekindle):
    limit = rekindle.root / "limit"
    limit.write_text("7")
    rekindle("run", "-d", "--name", "a", "--every-steps", "4", "--keep", "1", "--", sys.executable, "-c", PROGRAM, limit)

    def goes_to(step, image):
        rekindle.wait(lambda: rekindle.lines("a")[-1:] == [str(step)], f"step {step}")
        rekindle.wait(lambda: rekindle.sandbox("a")["recovery"]["images"] == [image], image)

    goes_to(7, "a.1")
    limit.write_text("8")
    goes_to(8, "a.2")
    rekindle("kill", "a")
    rekindle("restore", "a.2", "-d", "--name", "b")
    limit.write_text("9")
    rekindle.wait(lambda: rekindle.lines("b")[-1:] == ["9"], "the step after the image")
    rekindle("kill", "b")


def test_a_step_elsewhere_does_nothing(monkeypatch):
    monkeypatch.delenv("REKINDLE_RUN", raising=False)
    package.step()
