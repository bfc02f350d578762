"""Divergent control flow, calls, constant and local memory, large dynamic shared memory."""

import numpy as np
from kernels import Kernels, main

kernels = Kernels("control")


def collatz(random):
    x = random.integers(1, 3000, 500, np.uint32)
    steps = np.empty(500, np.int32)
    kernels.launch("collatz", 4, 128, x, steps, np.int32(500))

    def count(v):
        n = 0
        while v != 1:
            v, n = 3 * v + 1 if v & 1 else v >> 1, n + 1
        return n

    assert steps.tolist() == [count(v) for v in x.tolist()]


def calls(random):
    x = random.integers(0, 1000, 96, np.int32)
    out, deep = np.empty(96, np.int32), np.empty(96, np.int64)
    kernels.launch("calls", 1, 96, x, out, deep)
    i = np.arange(96)
    assert np.array_equal(out, np.choose(x % 3, [x + i, x * i, x - i]))
    n = i % 5
    assert np.array_equal(deep, np.choose(i % 3, [n + 1, n + 2, 2 * n + 3]))


def constant_tables(random):
    rule = np.dtype([("factor", "i4"), ("add", "i2"), ("shift", "u1"), ("scale", "f8")], align=True)
    rules = np.zeros(4, rule)
    for name, low, high in (("factor", -9, 9), ("add", -99, 99), ("shift", 0, 5)):
        rules[name] = random.integers(low, high, 4)
    rules["scale"] = random.random(4)
    kernels.set_global("rules", rules)
    x, out = random.integers(0, 10_000, 777, np.int32), np.empty(777)
    kernels.launch("apply_rules", 7, 128, x, out, np.int32(777))
    chosen = rules[x & 3]
    whole = (x * chosen["factor"] + chosen["add"]) >> chosen["shift"]
    primes = np.array([2, 3, 5, 7, 11, 13])[np.arange(777) % 6]
    assert np.allclose(out, whole * chosen["scale"] + primes, rtol=1e-14, atol=1e-11)


def switches(random):
    x = random.integers(0, 5000, 1000, np.int32)
    out = np.empty_like(x)
    kernels.launch("classify", 8, 128, x, out, np.int32(1000))

    def classify(v):
        kind = v % 9
        if kind == 0:
            return -v
        if kind in (1, 2):
            return (v + 10 if kind == 1 else v) * 3
        if kind in (3, 4):
            k = 0
            while k < v % 7:
                v, k = v ^ k << k, k + 1
            return v
        if kind == 5:
            return 1 if v & 16 else 2
        return ~v if v & 1 else v >> 1

    assert out.tolist() == [classify(v) for v in x.tolist()]


def local_arrays(random):
    x = random.integers(-100, 100, (40, 24), np.int32)
    out = np.empty_like(x)
    kernels.launch("sort_rows", 1, 40, x, out)
    assert np.array_equal(out, np.sort(x, axis=1))


def much_shared_memory(random):
    n = int(random.integers(7_000, 25_000))
    x, out = random.random(n), np.empty(n)
    kernels.launch("reverse", 1, 256, x, out, np.int32(n), shared=8 * n)
    assert np.array_equal(out, x[::-1])


main(collatz, calls, constant_tables, switches, local_arrays, much_shared_memory)
