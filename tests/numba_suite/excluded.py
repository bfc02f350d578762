"""Tests of numba-cuda's suite that need more than one GPU and PTX: patterns of test ids, with the reason."""

import fnmatch

PATTERNS = {}


def excluded(test: str) -> str | None:
    """Why this test does not count, if it does not."""
    return next((reason for pattern, reason in PATTERNS.items() if fnmatch.fnmatch(test, pattern)), None)
