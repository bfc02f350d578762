"""`run --mode auto`: in which mode a program is started that an earlier run of was refused something, and what is said of it."""

import subprocess
import sys
from pathlib import Path

import pytest
from interleavings import standin
from rekindle import PATIENCE, Rekindle

PROGRAM = Path(__file__).parent / "mode/refused.py"
FUNCTION = "cuImportExternalMemory"
HAS_DRIVER = Path("/dev/nvidiactl").exists()


def begin(rekindle, name, *options, arguments=()):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--name", name, *options, "--", sys.executable, PROGRAM, go, *arguments)
    return rekindle.sandbox(name)


def is_refused(rekindle, name):
    rekindle.wait(lambda: rekindle.sandbox(name).get("refused"), f"what {name} is refused")
    assert rekindle.sandbox(name)["refused"] == [FUNCTION]


def test_what_a_program_was_refused_is_shown_and_remembered_while_it_matters(rekindle):
    assert "mode_reason" not in begin(rekindle, "plain")
    is_refused(rekindle, "plain")
    assert f"was refused {FUNCTION}; `rekindle run --mode driver` is the way out" in rekindle("ps")
    rekindle("kill", "plain")
    rekindle.wait(lambda: not rekindle.sandbox("plain")["pid"], "its end")
    is_refused(rekindle, "plain")
    # An emulated GPU has no driver that could take it.
    again = begin(rekindle, "again", "--mode", "auto", "--gpu", "emulated")
    assert again["mode"] == "sandbox" and "emulated" in again["mode_reason"]
    # Other arguments are another program.
    other = begin(rekindle, "other", "--mode", "auto", arguments=["harmless"])
    assert other["mode"] == "sandbox" and "nothing is known" in other["mode_reason"]
    rekindle.wait_lines("other", 1)
    assert "refused" not in rekindle.sandbox("other")


def test_what_a_program_goes_without_is_told_and_does_not_matter(rekindle):
    begin(rekindle, "plain", arguments=["without"])
    is_refused(rekindle, "plain")
    assert any("cuMemCreate" in line for line in rekindle.lines("plain"))


@pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")
def test_without_a_driver_it_stays_in_the_sandbox(rekindle):
    begin(rekindle, "first", "--mode", "auto")
    is_refused(rekindle, "first")
    rekindle("kill", "first")
    rekindle.wait(lambda: not rekindle.sandbox("first")["pid"], "its end")
    second = begin(rekindle, "second", "--mode", "auto")
    assert second["mode"] == "sandbox"
    assert FUNCTION in second["mode_reason"] and "no NVIDIA GPU" in second["mode_reason"]


def test_the_next_start_is_in_driver_mode():
    directory, driver = standin.fresh(1 << 16)
    with directory, Rekindle(**driver.environment) as rekindle:
        first = begin(rekindle, "first", "--mode", "auto")
        assert first["mode"] == "sandbox" and "nothing is known" in first["mode_reason"]
        is_refused(rekindle, "first")
        # What is remembered is there for the next daemon too.
        rekindle("kill", "first")
        rekindle.wait(lambda: not rekindle.sandbox("first")["pid"], "its end")
        rekindle("shutdown")
        second = begin(rekindle, "second", "--mode", "auto")
        assert second["mode"] == "driver"
        assert second["mode_reason"] == f"an earlier run of it was refused {FUNCTION} in a sandbox"
        assert begin(rekindle, "third")["mode"] == "sandbox"
        command = [rekindle.command, "-v", "run", "-d", "--name", "fourth", "--mode", "auto", "--", sys.executable, PROGRAM, rekindle.root / "go"]
        said = subprocess.run(command, env=rekindle.environment, capture_output=True, text=True, timeout=PATIENCE, check=True).stderr
        assert f"fourth is started in mode driver: an earlier run of it was refused {FUNCTION}" in said


def test_a_program_that_is_linked_statically_goes_to_driver_mode(tmp_path):
    directory, driver = standin.fresh(1 << 16)
    program, source = tmp_path / "static", tmp_path / "static.c"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    with directory, Rekindle(**driver.environment) as rekindle:
        rekindle("run", "-d", "--name", "static", "--mode", "auto", "--", program)
        sandbox = rekindle.sandbox("static")
        assert sandbox["mode"] == "driver" and "linked statically" in sandbox["mode_reason"]


FUNCTION_OF_THE_DRIVER = """
import ctypes, os
import rekindle

app = rekindle.App("driven")


@app.cls(mode="driver", scaledown_window=0)
class Counter:
    @rekindle.enter()
    def prepare(self):
        self.driver = ctypes.CDLL(os.environ["REKINDLE_LIBCUDA"])
        assert self.driver.cuInit(0) == 0
        self.driver.standin_begin(0)
        self.process = os.getpid()

    @rekindle.method()
    def process_of_the_image(self):
        return self.process
"""
CALL = "import rekindle; print(rekindle.Cls.from_name('driven', 'Counter')().process_of_the_image.remote())"


def test_a_function_whose_gpu_half_the_driver_takes_is_served_from_its_images():
    directory, driver = standin.fresh(1 << 16)
    with directory, Rekindle(**driver.environment) as rekindle:
        app = rekindle.root / "driven.py"
        app.write_text(FUNCTION_OF_THE_DRIVER)
        rekindle("deploy", app, "--python", sys.executable)
        (image,) = rekindle.json("images")["images"]
        assert image["mode"] == "driver"
        environment = rekindle.environment | {"REKINDLE_COMMAND": rekindle.command}
        answers = set()
        for _ in range(2):
            called = subprocess.run([sys.executable, "-c", CALL], env=environment, capture_output=True, text=True, timeout=PATIENCE)
            assert called.returncode == 0, called.stderr
            answers.add(called.stdout)
            # It cannot sleep, and so ends.
            instances = lambda: rekindle.json("services")["services"][0]["instances"]
            rekindle.wait(lambda: not instances(), "its instance to end")
        assert len(answers) == 1
        rekindle("unserve", "driven-Counter", "--now")
