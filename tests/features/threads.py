"""Threads with their own default streams, blocked and working, go on; what one enqueues before it wakes another stays first."""

import threading

import numpy as np
from gpu import Module, call, download, driver, main, open_device, upload

SOURCE = 'extern "C" __global__ void append(int *a, int v) { int n = a[0]; a[n + 1] = v; a[0] = n + 1; }'
PER_THREAD = 2


def setup():
    context = open_device()
    module, turns = Module(SOURCE), 30
    log = upload(np.zeros(1 + 4 * turns, np.int32))
    own = [upload(np.zeros(1 + turns, np.int32)) for _ in range(4)]
    turn, changed, pause, go = [0], threading.Condition(), threading.Event(), threading.Event()
    module.append, _ = module.append, call("cuCtxSynchronize")

    def work(k):
        call("cuCtxSetCurrent", context)
        for n in range(turns):
            if n == turns // 2:
                pause.set()
                go.wait()
            with changed:
                changed.wait_for(lambda: turn[0] % 4 == k)
                module.append(1, 1, log, 4 * n + k)
                turn[0] += 1
                changed.notify_all()
            module.append(1, 1, own[k], n, stream=driver.CUstream(PER_THREAD))
        call("cuStreamSynchronize", driver.CUstream(PER_THREAD))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    pause.wait()

    def verify():
        go.set()
        for worker in workers:
            worker.join(120)
            assert not worker.is_alive()
        assert np.array_equal(download(log, 1 + 4 * turns, np.int32)[1:], np.arange(4 * turns))
        for buffer in own:
            assert np.array_equal(download(buffer, 1 + turns, np.int32)[1:], np.arange(turns))

    return verify


main(setup)
