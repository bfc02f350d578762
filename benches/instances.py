"""`Rekindle` of `tests/rekindle.py`, for benchmarks that import the package of that name too."""

import importlib.util
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "tests/rekindle.py"

specification = importlib.util.spec_from_file_location("harness", FILE)
harness = importlib.util.module_from_spec(specification)
# Its classes look for their module by its name.
sys.modules["harness"] = harness
specification.loader.exec_module(harness)
Rekindle = harness.Rekindle
