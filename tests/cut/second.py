"""Uses two GPUs, and enqueues work for the second one alone, so that there is always some to come: `second.py FILE ROUNDS`. It prints
`ready`, and `ok` once the file is there and all is done."""

import collections
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "features"))

from behind import AHEAD, THREADS  # noqa: E402
from gpu import Module, call, driver, open_device, upload  # noqa: E402
from waits import SOURCE  # noqa: E402


def main(end, rounds):
    open_device(0)
    upload(np.ones(THREADS, np.uint32))
    open_device(1)
    module, buffer, under_way = Module(SOURCE), upload(np.zeros(THREADS, np.uint32)), collections.deque()
    stream = call("cuStreamCreate", 1)
    print("ready", flush=True)
    while not end.exists():
        while under_way and driver.cuEventQuery(under_way[0])[0].value == 0:
            call("cuEventDestroy", under_way.popleft())
        if len(under_way) == AHEAD:
            time.sleep(0.005)
            continue
        module.step(2, 128, buffer, rounds, stream=stream)
        under_way.append(call("cuEventCreate", 2))
        call("cuEventRecord", under_way[-1], stream)
    call("cuCtxSynchronize")
    print("ok", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
