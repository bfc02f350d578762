"""Reductions, scans, votes and atomic operations."""

import numpy as np
from kernels import Kernels, main

kernels = Kernels("reduce")


def sums(random):
    n = int(random.integers(1, 50_000))
    x = random.random(n, np.float32)
    single, double = np.zeros(1, np.float32), np.zeros(1)
    kernels.launch("sum", 7, 160, x, single, double, np.int32(n))
    exact = x.sum(dtype=np.float64)
    assert np.isclose(single[0], exact, rtol=1e-5) and np.isclose(double[0], exact, rtol=1e-5), n


def extremes(random):
    n = int(random.integers(1, 5000))
    x = random.integers(-(2**31), 2**31, n, np.int32)
    low, high, bits = np.full(1, 2**31 - 1, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.uint64)
    kernels.launch("extremes", (n + 127) // 128, 128, x, low, high, bits, np.int32(n))
    wide = x.astype(np.int64).view(np.uint64) << np.uint64(20)
    assert (low[0], high[0], bits[0]) == (x.min(), x.view(np.uint32).max(), np.bitwise_xor.reduce(wide)), n


def histogram(random):
    x = random.integers(0, 256, int(random.integers(1, 30_000)), np.uint8)
    counts = np.zeros(256, np.int32)
    kernels.launch("histogram", 5, 96, x, counts, np.int32(len(x)))
    assert np.array_equal(counts, np.bincount(x, minlength=256))


def scan(random):
    block = 32 * int(random.integers(1, 33))
    x = random.integers(-1000, 1000, block, np.int32)
    out = np.empty_like(x)
    kernels.launch("scan", 1, block, x, out)
    assert np.array_equal(out, np.cumsum(x)), block


def votes(random):
    x = random.integers(0, 9, 32, np.int32)
    out = np.empty((32, 8), np.uint32)
    kernels.launch("votes", 1, 32, x, out)
    lane = np.arange(32)
    ballot = int(((x & 1) << lane.astype(np.int64)).sum())
    assert (out[:, 0] == ballot).all()
    assert (out[:, 1] == (7 in x) + 2 * (x.max() < 8)).all()
    same = [sum(1 << int(j) for j in lane[x == v]) for v in x]
    assert np.array_equal(out[:, 2], np.array(same, np.uint32))
    assert (out[:, 3] == x.sum()).all() and (out[:, 4] == x.max()).all()
    assert np.array_equal(out[:, 5], x[lane // 8 * 8 + x % 8])
    assert np.array_equal(out[:, 6], x[lane ^ 5])
    assert np.array_equal(out[:, 7], np.where(x & 1, (x & 1).sum(), 0))


def queue(random):
    n = int(random.integers(1, 4000))
    x, out, count = random.integers(0, 100, n, np.int32), np.full(n, -1, np.int32), np.zeros(1, np.int32)
    kernels.launch("filter", (n + 63) // 64, 64, x, out, count, np.int32(n), np.int32(40))
    kept = x[x < 40]
    assert count[0] == len(kept) and np.array_equal(np.sort(out[: len(kept)]), np.sort(kept))


main(sums, extremes, histogram, scan, votes, queue)
