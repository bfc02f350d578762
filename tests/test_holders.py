"""Whoever holds a program is killed in the middle of `checkpoint --stop`; see tests/interleavings/holders.py.

The program goes on, or its image is there and continues it; `scripts/soak kills` does the same for longer.
"""

import re
import tempfile

import pytest
from interleavings import holders, pod
from interleavings.rounds import rounds, seeds
from rekindle import Rekindle

# What may be said of it, by who was killed.
SAID = {
    "criu": r"it was killed by signal 9; what it had changed was undone, and the program goes on|no usable CRIU|kerndat|CRIU",
    "init": r"$.",
    "daemon": r"the connection to the daemon was lost",
    "helper": r"the driver helper ended while it was to .*no image was taken, and the program goes on",
    "relay": r"goes on|could not",
    "worker": r"GPU worker",
}


def check(kind, outcome):
    """It worked, or says who was killed."""
    assert not outcome.is_lost and not outcome.wrong, outcome
    assert outcome.code in (0, 1) and (outcome.code == 0) <= outcome.image, outcome
    if outcome.code:
        assert re.search(SAID[kind], outcome.said), outcome


@pytest.mark.parametrize("seed", seeds("1"))
@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in holders.MODES.items() for mode in modes])
def test_who_holds_a_program_can_die(kind, mode, seed):
    environment, keep, driver = holders.environment(kind)
    with tempfile.TemporaryDirectory() as directory, Rekindle(**environment) as rekindle:
        pods = None
        if kind == "relay":
            try:
                pods = pod.Pods([driver.directory, rekindle.root])
            except OSError as error:
                pytest.skip(f"Podman cannot do that here: {error}")
        try:
            if pods:
                try:
                    pods.probe()
                except OSError as error:
                    pytest.skip(f"Podman cannot checkpoint a container here: {error}")
            program = holders.build(directory) if kind in ("criu", "init", "daemon") else None
            scene = holders.Scene(kind, seed, rekindle, program, driver, pods, mode)
            try:
                for _ in range(rounds(2 if kind == "relay" else 6)):
                    check(kind, scene.take())
            finally:
                scene.end()
        finally:
            if pods:
                pods.end()
    if keep:
        keep.cleanup()


def test_a_sandbox_whose_first_process_is_killed_says_so():
    with Rekindle() as rekindle:
        rekindle("run", "-d", "--gpu", "emulated", "--name", "a", "--", "sleep", "1000")
        root = rekindle.sandbox("a")["pid"]
        init = int(holders.machine.status(root, "PPid"))
        assert holders.machine.status(init, "NSpid").split()[-1] == "1"
        holders.kills.strike(init)
        rekindle.wait_end("a")
        row = rekindle.sandbox("a")
        assert row["state"] == "killed" and "first process of the sandbox was killed" in row["problem"], row
        rekindle("run", "-d", "--gpu", "emulated", "--name", "b", "--", "sleep", "1000")
        rekindle("kill", "b")
        rekindle.wait_end("b")
        assert rekindle.sandbox("b")["problem"] is None
