"""Instances of graphs come back when they are launched, or when the program rests: a restore waits for none of them."""

import sys
from pathlib import Path

import pytest
from rekindle import Rekindle

FEATURES, TOLD = (Path(__file__).parent / name for name in ("features", "told"))
COUNT = 40

PROGRAM = """
import sys, threading, time
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import numpy as np
from gpu import adder, call, download, driver, upload
from told import lines

module, n, a, b = adder()
mode, (stream, other) = driver.CUstreamCaptureMode(0), (call("cuStreamCreate", 1) for _ in range(2))
word = upload(np.zeros(1, np.uint32))


def captured(number):
    call("cuStreamBeginCapture", stream, mode)
    module.add(n // 128, 128, b, float(number), n, stream=stream)
    call("cuMemcpyDtoDAsync", a, b, 4 * n, stream)
    graph = call("cuStreamEndCapture", stream)
    instance = call("cuGraphInstantiate", graph, 0)
    call("cuGraphDestroy", graph)
    return instance


def launched(number):
    call("cuMemsetD8Async", b, 0, 4 * n, stream)
    call("cuGraphLaunch", instances[number], stream)
    call("cuStreamSynchronize", stream)
    return int(download(a, n, np.float32)[-1])


instances = [captured(number) for number in range(int(sys.argv[4]))]
print("ready", flush=True)
for ask in lines(Path(sys.argv[3])):
    if ask == "hold":
        # Somebody waits for it, so that there is no quiet moment.
        call("cuStreamWaitValue32", other, word, 1, 0)
        threading.Thread(target=driver.cuStreamSynchronize, args=[other]).start()
        time.sleep(0.1)
    elif ask == "release":
        call("cuMemsetD32Async", word, 1, 1, stream)
    print(ask, *([launched(int(ask))] if ask.isdigit() else []), flush=True)
"""


def unmade(rekindle, name):
    (used,) = rekindle.json("stats", "--no-stream", name)["sandboxes"]
    return used["unmade_graphs"]


@pytest.mark.parametrize("share", [(), ("--share", "us")], ids=["alone", "shared"])
def test_instances_are_made_when_they_are_launched_or_the_program_rests(share):
    with Rekindle(REKINDLE_FAULT="loading-begun:hang") as rekindle:
        asks = rekindle.root / "asks"
        asks.touch()

        def ask(*lines):
            with asks.open("a") as out:
                out.write("".join(f"{line}\n" for line in lines))

        options = ("-d", "--gpu", rekindle.gpu, *share)
        rekindle("run", *options, "--name", "graphs", "--", sys.executable, "-c", PROGRAM, FEATURES, TOLD, asks, COUNT)
        assert rekindle.wait_lines("graphs", 1) == ["ready"]
        rekindle("checkpoint", "graphs", "--to", "first", "--stop")
        # Work that is under way from the first moment on, and waits for the contents until then.
        ask("hold")
        restoring = rekindle.begin("restore", "first", "--name", "first", *options)
        rekindle.reached("loading-begun")
        assert rekindle.wait_lines("first", 1) == ["hold"]
        rekindle.let_go("loading-begun")
        restoring.end()
        assert unmade(rekindle, "first") == COUNT
        ask(3, COUNT - 1, 3)
        assert rekindle.wait_lines("first", 4)[1:] == ["3 3", f"{COUNT - 1} {COUNT - 1}", "3 3"]
        assert unmade(rekindle, "first") == COUNT - 2
        ask("release")
        rekindle.wait(lambda: unmade(rekindle, "first") == 0, "all instances")
        rekindle("checkpoint", "first", "--to", "second", "--stop")
        rekindle("restore", "second", "--name", "second", *options)
        rekindle.wait(lambda: unmade(rekindle, "second") == 0, "all instances")
        ask(*range(COUNT))
        assert rekindle.wait_lines("second", COUNT) == [f"{number} {number}" for number in range(COUNT)]
