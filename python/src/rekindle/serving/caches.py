"""GPU memory that frameworks keep for themselves."""

from __future__ import annotations

import sys


def empty_caches() -> None:
    """Has torch give back the memory that no tensor has, if the program has imported and used it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.empty_cache()
