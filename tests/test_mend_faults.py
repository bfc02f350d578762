"""Faults of a program's own kernels, where the loss of its worker would be mended: the program gets them, whatever it waits for."""

import sys

import pytest
from test_features import FEATURES

FAULTY = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from gpu import Module, driver, open_device
open_device()
module = Module('extern "C" __global__ void write(int *word) { *word = 1; }')
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.005)
module.write(1, 1, 1 << 40)
print(driver.cuCtxSynchronize()[0].name, flush=True)
print(driver.cuCtxSynchronize()[0].name, flush=True)
"""


def test_a_fault_of_its_own_is_told_once_it_has_come_twice(rekindle):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--mend", "--name", "faulty", "--gpu", rekindle.gpu, "--", sys.executable, "-c", FAULTY, FEATURES, go)
    assert rekindle.wait_lines("faulty", 1) == ["ready"]
    rekindle.wait(lambda: rekindle.sandbox("faulty")["mending"]["on"], "mending to be on")
    go.touch()
    lines = rekindle.wait_end("faulty")
    assert lines[0] == "ready" and lines[1] == lines[2] and lines[1].startswith("CUDA_ERROR_"), lines
    row = rekindle.sandbox("faulty")
    assert row["exit_code"] == 0 and row["mending"]["mended"] == 1


WAITS_BEHIND_A_FAULT = """
import ctypes, os, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from gpu import Module, call, download, driver, open_device
open_device()
module = Module("""
WAITS_BEHIND_A_FAULT += r"""'extern "C" __global__ void clock(unsigned long long *a) { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(*a)); }'
    'extern "C" __global__ void until(unsigned long long then, unsigned long long *a) {'
    '    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(*a)); while (*a < then); }'
    'extern "C" __global__ void write(int *word) { *word = 1; }')
"""
WAITS_BEHIND_A_FAULT += """
word, block = call("cuMemAlloc", 8), call("cuMemAlloc", 1 << 20)
data = np.zeros(1 << 20, np.uint8)
def now():
    module.clock(1, 1, word)
    return int(download(word, 1, np.uint64)[0])
now(), module.until(1, 1, 0, word), module.write(1, 1, word), call("cuMemcpyHtoD", block, data.ctypes.data, data.nbytes), call("cuCtxSynchronize")
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.005)
# What comes behind that kernel is all asked for before the fault, but when it is done once more the fault comes first.
module.until(1, 1, now() + 200_000_000, word)
module.write(1, 1, 1 << 40)
for _ in range(int(sys.argv[4])):
    driver.cuMemcpyHtoD(block, data.ctypes.data, data.nbytes)
for _ in range(400):
    module.clock(1, 1, word)
print((driver.cuCtxSynchronize() if sys.argv[3] == "wait" else driver.cuMemcpyDtoH(data.ctypes.data, block, data.nbytes))[0].name, flush=True)
"""


@pytest.mark.parametrize(("what", "uploads"), [("wait", 0), ("copy", 0), ("wait", 8)])
def test_who_waits_behind_a_fault_of_its_own_is_told(rekindle, what, uploads):
    go = rekindle.root / "go"
    command = [sys.executable, "-c", WAITS_BEHIND_A_FAULT, FEATURES, go, what, uploads]
    rekindle("run", "-d", "--mend", "--name", "faulty", "--gpu", rekindle.gpu, "--", *command)
    assert rekindle.wait_lines("faulty", 1) == ["ready"], rekindle.lines("faulty")
    rekindle.wait(lambda: rekindle.sandbox("faulty")["mending"]["on"], "mending to be on")
    go.touch()
    assert rekindle.wait_end("faulty") == ["ready", "CUDA_ERROR_ILLEGAL_ADDRESS"]
    row = rekindle.sandbox("faulty")
    assert row["exit_code"] == 0 and row["mending"]["mended"] == 1
