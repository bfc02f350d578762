"""Tests of numba-cuda's suite that need more than one GPU and PTX: patterns of test ids, with the reason."""

import fnmatch

JITLINK = "needs nvJitLink: without it cuda-core warns, and the test wants no warning"
OTHER_NUMBA = "needs an older numba: 0.68 stamps cached files otherwise than numba-cuda 0.30 does; no GPU is involved"

PATTERNS = {
    "*.test_debug.TestDebugOutput.test_dump_assembly": JITLINK,
    "*.test_warning.TestWarnings.test_efficient_launch_configuration": JITLINK,
    "*.test_caching.CUDAAndCPUCachingTest.test_cpu_and_cuda_*": OTHER_NUMBA,
}


def excluded(test: str) -> str | None:
    """Why this test does not count, if it does not."""
    return next((reason for pattern, reason in PATTERNS.items() if fnmatch.fnmatch(test, pattern)), None)
