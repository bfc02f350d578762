"""Arithmetic, conversions and functions of random numbers, bit for bit where CUDA says so."""

import ml_dtypes
import numpy as np
from kernels import Kernels, main

kernels = Kernels("arithmetic")
N = 1000
BRAIN = ml_dtypes.bfloat16


def launch(name, *arrays):
    kernels.launch(name, (N + 127) // 128, 128, *arrays, np.int32(N))


def same(found, expected):
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[found.dtype.itemsize]
    assert np.array_equal(found.view(bits), expected.astype(found.dtype).view(bits)), np.flatnonzero(found != expected)[:5]


def numbers(random, kind=np.float64, scale=10):
    return (random.standard_normal(N) * scale).astype(kind)


def halves(random):
    a, b, c = (numbers(random, np.float16) for _ in range(3))
    out = np.empty((N, 8), np.float16)
    launch("halves", a, b, c, out)
    # A product of two halves is exact in double precision, and so is its sum with a third: one rounding.
    fused = (a.astype(np.float64) * b + c).astype(np.float16)
    for column, expected in enumerate((a + b, a - b, a * b, fused, -a, np.maximum(a, b), abs(a), np.where(a < b, a, c))):
        same(out[:, column].copy(), expected)
    pairs = np.empty(N, np.float16)
    kernels.launch("pairs", 8, 64, a, b, pairs, np.int32(N // 2))
    swapped, difference = b.reshape(-1, 2)[:, ::-1].ravel(), (a - b).astype(np.float64)
    same(pairs, (a.astype(np.float64) * swapped + difference).astype(np.float16))


def brains(random):
    a, b, c = (numbers(random, BRAIN) for _ in range(3))
    out = np.empty((N, 4), BRAIN)
    launch("brains", a, b, c, out)
    wide = [x.astype(np.float64) for x in (a, b, c)]
    same(out[:, 0].copy(), a + b)
    same(out[:, 1].copy(), a * b)
    assert np.allclose(out[:, 2].astype(np.float64), wide[0] * wide[1] + wide[2], rtol=2**-8, atol=1e-6)
    same(out[:, 3].copy(), np.minimum(a, b))


CONVERTED = np.dtype(
    {
        "names": ["half", "brain", "byte", "word", "nearest", "toward_zero", "down", "up", "wide", "natural", "narrow", "upward", "back"],
        "formats": ["f2", BRAIN, "i1", "u2", "i4", "i4", "i4", "i4", "i8", "u4", "f4", "f4", "f8"],
    },
    align=True,
)


def conversions(random):
    x = numbers(random, scale=1000)
    x[:8] = 0.5, 1.5, 2.5, -0.5, -1.5, 65504, -3.25, 1e-7
    out = np.zeros(N, CONVERTED)
    launch("conversions", x, out)
    f = x.astype(np.float32)
    whole = np.trunc(x).astype(np.int64)
    same(out["half"].copy(), f.astype(np.float16))
    same(out["brain"].copy(), f.astype(BRAIN))
    assert np.array_equal(out["byte"], whole.astype(np.int8)) and np.array_equal(out["word"], whole.astype(np.uint16))
    assert np.array_equal(out["nearest"], np.rint(x)) and np.array_equal(out["toward_zero"], whole)
    assert np.array_equal(out["down"], np.floor(f)) and np.array_equal(out["up"], np.ceil(x))
    assert np.array_equal(out["wide"], np.rint(x * 1e6)) and np.array_equal(out["natural"], abs(whole))
    same(out["narrow"].copy(), f)
    same(out["upward"].copy(), np.where(f.astype(np.float64) < x, np.nextafter(f, np.float32(np.inf)), f))
    assert np.array_equal(out["back"], out["half"].astype(np.float64) + out["brain"].astype(np.float64))


def doubles(random):
    a, b = numbers(random), numbers(random)
    out = np.empty((N, 8))
    launch("doubles", a, b, out)
    columns = (a + b, a * b, a / b, None, np.sqrt(abs(a)), np.minimum(a, b), np.trunc(a), np.fmod(a, b))
    for column, expected in enumerate(columns):
        if expected is not None:
            same(out[:, column].copy(), expected)
    assert np.allclose(out[:, 3], a * b + a, rtol=1e-13, atol=1e-14)


def singles(random):
    a, b = numbers(random, np.float32), numbers(random, np.float32)
    out = np.empty((N, 8), np.float32)
    launch("singles", a, b, out)
    columns = (a + b, a * b, a / b, np.sqrt(abs(a)), np.maximum(a, b), np.rint(a), np.copysign(a, b), np.ceil(b))
    for column, expected in enumerate(columns):
        same(out[:, column].copy(), expected)


def functions(random):
    x = numbers(random, scale=3)
    out, single = np.empty((N, 8)), np.empty((N, 8), np.float32)
    launch("functions", x, out, single)

    def truth(v):
        size = abs(v)
        return (np.sin(v), np.exp(v), np.log(size + 1), size**1.5, np.tanh(v), np.cbrt(v), np.arctan2(v, 2), (v * v + 1) ** -0.5)

    rounded = x.astype(np.float32).astype(np.float64)
    for column, (expected, expected32) in enumerate(zip(truth(x), truth(rounded), strict=True)):
        assert np.allclose(out[:, column], expected, rtol=1e-14, atol=1e-15), column
        assert np.allclose(single[:, column], expected32, rtol=2e-6, atol=1e-7), column


def integers(random):
    a, b = (random.integers(-(2**63), 2**63 - 1, N) >> random.integers(0, 62, N) for _ in range(2))
    b[b == 0] = 1
    out = np.empty((N, 12), np.int64)
    launch("integers", a, b, out)
    low = lambda v, bits: (v + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)  # noqa: E731
    for row, x, y in zip(out.tolist(), a.tolist(), b.tolist(), strict=True):
        s, t, shift = low(x, 32), low(y, 32), y & 63
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        small = abs(s) // abs(t | 1) * (1 if (s < 0) == ((t | 1) < 0) else -1)
        logical = low((x % 2**64) >> shift, 64)
        reverse = int(f"{s % 2**32:032b}"[::-1], 2)
        assert row == [
            *(low(quotient, 64), low(x - quotient * y, 64), x * y >> 64, low(x * y, 64), x >> shift, logical),
            *((x % 2**64).bit_count(), 32 - (s % 2**32).bit_length(), low(small, 32), s * t >> 32, reverse),
            low(min(s, t) ^ low(max(s, t), 16), 32),
        ], (x, y)


main(halves, brains, conversions, doubles, singles, functions, integers)
