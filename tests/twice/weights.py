"""Weights in pinned memory, or in memory of the program's own, and the same on the GPU; says again and again whether both are."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))
import numpy as np
from gpu import at, call, download, open_device

COUNT, PIECE = 16 << 20, 1 << 18

open_device()
pointer = call("cuMemHostAlloc", 4 * COUNT, 0) if sys.argv[1] == "pinned" else None
weights = at(pointer, COUNT) if pointer else np.empty(COUNT, np.float32)
weights[:] = np.random.default_rng(1).random(COUNT, np.float32)
device = call("cuMemAlloc", 4 * COUNT)
call("cuMemcpyHtoD", device, pointer or weights.ctypes.data, 4 * COUNT)
total = float(weights.sum(dtype=np.float64))


def same(begin):
    return np.array_equal(download(int(device) + 4 * begin, PIECE), weights[begin : begin + PIECE])


while True:
    # Piece by piece: whatever else it has in memory is in the image too.
    is_same = all(map(same, range(0, COUNT, PIECE))) and float(weights.sum(dtype=np.float64)) == total
    print("same" if is_same else "other", flush=True)
    time.sleep(0.05)
