"""Code of the toolkit's headers: CUB, barriers, pipelines, atomics, groups, matrix fragments."""

import numpy as np
from kernels import Kernels, main

kernels = Kernels("library")


def collective(random):
    x = random.integers(-(2**20), 2**20, 512, np.int32)
    total, running, ordered = np.zeros(1, np.int32), np.zeros(128, np.int32), np.zeros(512, np.uint32)
    kernels.launch("collective", 1, 128, x, total, running, ordered)
    assert total[0] == x[:128].sum() and np.array_equal(running, np.cumsum(x[:128]))
    assert np.array_equal(ordered, np.sort(x.view(np.uint32)))


def copies(random):
    x = random.integers(-1000, 1000, 512, np.int32)
    reverse, double = np.zeros(128, np.int32), np.zeros(512, np.int32)
    kernels.launch("copied", 1, 128, x, reverse, double)
    assert np.array_equal(reverse, x[127::-1]) and np.array_equal(double, 2 * x)


def atomics(random):
    blocks = int(random.integers(1, 9))
    count, total, most = np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32)
    kernels.launch("shared_counts", blocks, 64, count, total, most)
    n = 64 * blocks
    assert (count[0], total[0], most[0]) == (n, n / 2, (np.arange(n) * 7 % 1000).max())


def groups(random):
    x = random.integers(0, 60, 64, np.int32)
    out = np.zeros((64, 6), np.int32)
    kernels.launch("groups", 1, 64, x, out)
    tiles, odd = x.reshape(8, 8), (x & 1).reshape(2, 32)
    assert np.array_equal(out[:, 0], np.repeat(tiles.sum(axis=1), 8))
    assert np.array_equal(out[:, 1], np.cumsum(tiles, axis=1).ravel())
    assert np.array_equal(out[:, 2], [(tiles[i // 8] % 3 == x[i] % 3).sum() for i in range(64)])
    rank = np.cumsum(odd, axis=1) - odd
    largest = np.where(odd, x.reshape(2, 32), 0).max(axis=1, keepdims=True)
    assert np.array_equal(out[:, 3], (odd * (100 * odd.sum(axis=1, keepdims=True) + rank)).ravel())
    assert np.array_equal(out[:, 4], (odd * largest).ravel())
    assert np.array_equal(out[:, 5], np.arange(64) // 8)


def fragments(random):
    a, b = (random.integers(-8, 9, (16, 16)).astype(np.float16) for _ in range(2))
    c = np.zeros((16, 16), np.float32)
    kernels.launch("fragments", 1, 32, a, b, c)
    assert np.array_equal(c, 2 * (a.astype(np.float32) @ b.T.astype(np.float32) + 1))


main(collective, copies, atomics, groups, fragments)
