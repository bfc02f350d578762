"""Processes of one program that each use the GPU, as a server and its engines: all come back, and go on talking to each other."""

import multiprocessing

import numpy as np
from gpu import adder, call, download, main


def engine(number, requests, answers):
    module, n, sums, _ = adder()
    answers.put(number)
    total = 0.0
    for value in iter(requests.get, None):
        module.add(4, 256, sums, float(value * number), n)
        call("cuCtxSynchronize")
        total += value * number
        assert np.all(download(sums, n) == total)
        answers.put((number, total))


def setup():
    module, n, own, _ = adder()
    spawn = multiprocessing.get_context("spawn")
    answers, engines = spawn.Queue(), []
    for number in (1, 2):
        requests = spawn.Queue()
        process = spawn.Process(target=engine, args=(number, requests, answers), daemon=True)
        process.start()
        engines.append((process, requests))
    assert {answers.get(timeout=120) for _ in engines} == {1, 2}

    def ask(value):
        for _, requests in engines:
            requests.put(value)
        module.add(4, 256, own, float(value), n)
        return sorted(answers.get(timeout=120) for _ in engines)

    assert ask(5) == [(1, 5.0), (2, 10.0)]

    def verify():
        assert ask(3) == [(1, 8.0), (2, 16.0)]
        assert np.all(download(own, n) == 8.0)
        for process, requests in engines:
            requests.put(None)
            process.join(120)
            assert process.exitcode == 0

    return verify


if __name__ == "__main__":
    main(setup)
