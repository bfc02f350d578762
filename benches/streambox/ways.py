"""Ways to run the functions of an app: each has `start`, `call`, `flow`, `add`, `gpu_bytes` and `stop`.

`rekindle`: services, all functions of an app in one GPU context, arrays handed on by reference; a workflow is one request to the
node. `called`: the same, but the program that asks has each step called. `processes`: a program for each
function, values through the host's memory. `mps`: the same, their GPU calls through NVIDIA's Multi-Process Service. `streams`: all
functions as threads of one program with a stream each. Without an NVIDIA GPU the programs of the latter run in a sandbox each, for
there is no other way to the emulated GPU.
"""

from native import Mps, Programs
from services import Called, Rekindle

NAMES = ["rekindle", "called", "streams", "processes", "mps"]
# What is measured if nothing is said.
USUAL = [name for name in NAMES if name != "called"]


def make(name, instance):
    if name == "rekindle":
        return Rekindle(instance)
    if name == "called":
        return Called(instance)
    if name == "mps":
        return Mps(instance)
    return Programs(instance, {"processes": "host", "streams": "here"}[name])
