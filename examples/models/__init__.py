"""Models of the examples 03 to 05: of today's shape, with torch, on an NVIDIA GPU; small ones of numba's kernels else.

All have random weights, the same in each process, so what they find means nothing. `EXAMPLES_GPU` is the GPU, as `rekindle run
--gpu` takes it; without it the first NVIDIA GPU if there is one, else the emulated one.
"""

import importlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

GPU = os.environ.get("EXAMPLES_GPU") or ("nvidia" if Path("/dev/nvidiactl").exists() else "emulated")
IS_LARGE = GPU.startswith("nvidia") and find_spec("torch") is not None
# Pixels of a picture's side.
SIDE = 512 if IS_LARGE else 32
# From so many bytes on an array stays on the GPU between two functions: so few that those of the small models do, too.
LEAST = 4096
# As `@app.cls` takes them: all functions of an app in one GPU context.
OPTIONS = {"gpu": GPU, "max_containers": 2, "scaledown_window": 60}


def load(name: str, *arguments: Any) -> Any:
    """A model by its name, on the GPU. Its library is imported here, so that whoever calls the app does without."""
    return getattr(importlib.import_module("models.large" if IS_LARGE else "models.small"), name)(*arguments)


def picture(seed: int, side: int = SIDE) -> np.ndarray:
    """Pixels of a picture, uint8 of (side, side, 3): squares of some colours, with noise."""
    numbers = np.random.default_rng(seed)
    coarse = numbers.integers(0, 200, (8, 8, 3))
    return (coarse.repeat(side // 8, 0).repeat(side // 8, 1) + numbers.integers(0, 56, (side, side, 3))).astype(np.uint8)
