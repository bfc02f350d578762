"""Counts on the GPU: `faulty.py FAULT GO`. Once the file FAULT is there a kernel of it faults; it says so, and fails once GO is there."""

import os
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "features"))

from gpu import ADD, Module, call, download, driver, open_device, upload  # noqa: E402

fault, go = sys.argv[1:3]
open_device()
module, wild = Module(ADD), Module('extern "C" __global__ void write(int *word) { *word = 1; }')
count, kept = 0, upload(np.zeros(128, np.float32))
while True:
    count += 1
    module.add(1, 128, kept, 1.0, 128)
    assert (download(kept, 128) == count).all()
    print(count, flush=True)
    if os.path.exists(fault):
        wild.write(1, 1, 1 << 40)
        print(driver.cuCtxSynchronize()[0].name, flush=True)
        while not os.path.exists(go):
            time.sleep(0.005)
        call("cuCtxSynchronize")
    time.sleep(0.01)
