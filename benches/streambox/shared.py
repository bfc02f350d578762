"""What all ways need: patience, the apps' modules, and the GPU's memory."""

import subprocess
import time

from rekindle.loading import load_module

# Seconds that one call, or the start of a program, may take.
PATIENCE = 60.0


class Unavailable(Exception):
    """This machine does not have it."""


MODULES = {}


def module_of(file):
    if file not in MODULES:
        MODULES[file] = load_module(file)
    return MODULES[file]


def wait_for(condition, what, limit=PATIENCE):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"after {limit:g} s still waiting for {what}")
        time.sleep(0.002)


def used_bytes(instance):
    """GPU memory in use: what the driver says, or, of the emulated GPU, what programs have."""
    if instance.gpu.startswith("nvidia"):
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]) << 20
    return sum(row["device_bytes"] for row in instance.json("ps")["sandboxes"])
