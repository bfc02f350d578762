"""Forked children that don't use the GPU, as a data loader's workers, are restored with their parent; CUDA refuses them."""

import multiprocessing

import numpy as np
from gpu import call, download, driver, main, open_device, upload


def child(requests, answers):
    answers.put(("code", driver.cuMemAlloc(100)[0].value))
    for number in iter(requests.get, None):
        answers.put(("square", number * number))


def setup():
    open_device()
    buffer = upload(np.arange(10, dtype=np.float32))
    fork = multiprocessing.get_context("fork")
    requests, answers = fork.Queue(), fork.Queue()
    children = [fork.Process(target=child, args=(requests, answers), daemon=True) for _ in range(2)]
    for process in children:
        process.start()
    assert [answers.get(timeout=120) for _ in children] == [("code", 3)] * 2

    def verify():
        for number in range(20):
            requests.put(number)
        assert sorted(answers.get(timeout=120)[1] for _ in range(20)) == [n * n for n in range(20)]
        for _ in children:
            requests.put(None)
        for process in children:
            process.join(120)
            assert process.exitcode == 0
        assert np.array_equal(download(buffer, 10), np.arange(10, dtype=np.float32))
        call("cuCtxSynchronize")

    return verify


main(setup)
