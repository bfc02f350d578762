"""Products of matrices of random shapes and values, in every precision."""

import ml_dtypes
import numpy as np
from kernels import Kernels, main

kernels = Kernels("matmul")


def products(random):
    for name, kind, tolerance in (
        ("single", np.float32, 1e-5),
        ("twice", np.float64, 1e-13),
        ("half_precision", np.float16, 1e-5),
        ("brain", ml_dtypes.bfloat16, 1e-5),
    ):
        m, n, k = (int(size) for size in random.integers(1, 70, 3))
        a, b = (random.standard_normal(shape).astype(kind) for shape in ((m, k), (k, n)))
        c = np.full((m, n), np.nan, np.float64 if kind is np.float64 else np.float32)
        kernels.launch(name, ((n + 15) // 16, (m + 15) // 16), (16, 16), a, b, c, *map(np.int32, (m, n, k)))
        exact = a.astype(np.float64) @ b.astype(np.float64)
        assert np.allclose(c, exact, rtol=tolerance, atol=tolerance * k), (name, m, n, k)


def dynamic_tiles(random):
    for side in (4, 8, 32):
        n = side * int(random.integers(1, 4))
        a, b = (random.standard_normal((n, n)).astype(np.float32) for _ in range(2))
        c = np.empty_like(a)
        kernels.launch("dynamic", (n // side, n // side), side * side, a, b, c, np.int32(n), np.int32(side), shared=8 * side * side)
        assert np.allclose(c, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5 * n), side


main(products, dynamic_tiles)
