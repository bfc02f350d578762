"""Instances of graphs whose memory is gone: the program that keeps one can be imaged, and it is an error to launch it."""

import sys
from pathlib import Path

FEATURES = Path(__file__).parent / "features"

PROGRAM = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from gpu import call, copy_box, download, driver, make_array, open_device, upload

open_device()
mode, stream = driver.CUstreamCaptureMode(0), call("cuStreamCreate", 1)
kept, gone = upload(np.full(64, 7, np.uint8)), upload(np.full(8 << 20, 9, np.uint8))
target = upload(np.zeros(4096, np.uint8))
array = make_array((64, 64), np.uint8)


def captured(work):
    call("cuStreamBeginCapture", stream, mode)
    work()
    return call("cuGraphInstantiate", call("cuStreamEndCapture", stream), 0)


def launched(instance):
    code = driver.cuGraphLaunch(instance, stream)[0]
    return int(code) or int(driver.cuStreamSynchronize(stream)[0])


whole = captured(lambda: call("cuMemcpyDtoDAsync", target, kept, 64, stream))
copies = captured(lambda: call("cuMemcpyDtoDAsync", target, gone, 64, stream))
fills = captured(lambda: call("cuMemsetD8Async", gone, 1, 64, stream))
boxes = captured(lambda: copy_box(target, array, (64, 64, 1), stream=stream))
call("cuMemFree", gone)
call("cuArrayDestroy", array)


def wait(word):
    print(word, flush=True)
    while not os.path.exists(os.path.join(sys.argv[2], word)):
        time.sleep(0.005)


wait("first")
assert launched(whole) == 0 and np.all(download(target, 64, np.uint8) == 7)
wait("second")
# Once a restore needs the addresses no more, what lies there now is copied.
last = time.monotonic() + 20
while int(again := upload(np.full(8 << 20, 5, np.uint8))) != int(gone) and time.monotonic() < last:
    call("cuMemFree", again)
    time.sleep(0.02)
assert launched(copies) == 0 and np.all(download(target, 64, np.uint8) == 5)
assert launched(fills) == 0 and np.all(download(again, 64, np.uint8) == 1)
print("copied", flush=True)
for instance in (whole, copies, fills):
    call("cuGraphExecDestroy", instance)
print("code", launched(boxes), flush=True)
"""


def test_an_instance_whose_memory_is_gone_comes_back(rekindle):
    program = ("--", sys.executable, "-c", PROGRAM, FEATURES, rekindle.root)
    rekindle("run", "-d", "--name", "graph", "--gpu", rekindle.gpu, *program)
    assert rekindle.wait_lines("graph", 1) == ["first"]
    rekindle("checkpoint", "graph", "--to", "first", "--stop")
    rekindle.restore("first", "again")
    assert rekindle.sandbox("again")["pid"]
    (rekindle.root / "first").touch()
    assert rekindle.wait_lines("again", 1) == ["second"]
    rekindle("checkpoint", "again", "--to", "second", "--stop")
    rekindle.restore("second", "last")
    (rekindle.root / "second").touch()
    lines = rekindle.wait_end("last")
    assert "copied" in lines
    assert lines[-1].startswith("code ") and lines[-1] != "code 0"
