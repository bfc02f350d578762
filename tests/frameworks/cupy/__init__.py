"""As much of CuPy as is told to give memory back: what that does, a program says."""

from types import SimpleNamespace

pool = SimpleNamespace(free_all_blocks=lambda: None)


def get_default_memory_pool():
    return pool
