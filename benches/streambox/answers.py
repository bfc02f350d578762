"""Whether a result is the expected one."""

import numpy


def agree(found, expected):
    """Whether two results are the same; numbers to a thousandth, for a GPU's libraries add in orders of their own."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and found.keys() == expected.keys() and all(agree(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(agree(one, other) for one, other in zip(found, expected))
    if isinstance(expected, numpy.ndarray):
        # A pixel may have been rounded the other way.
        near = 1 if expected.dtype.kind in "ui" else 1e-3
        return found.shape == expected.shape and numpy.allclose(found.astype(float), expected.astype(float), rtol=1e-3, atol=near)
    return found == expected
