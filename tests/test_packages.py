"""Programs on packages that nobody here wrote, and that compile their kernels to PTX: the comparison of benches/packages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rekindle import PATIENCE

RUN = Path(__file__).resolve().parents[1] / "benches/packages/run"


@pytest.mark.parametrize("name", ["taichi_field", "tinygrad_train"])
def test_two_generations_of_images_go_on_as_two_runs_that_nobody_touches(name, tmp_path):
    out = tmp_path / "results.json"
    command = [sys.executable, RUN, "--gpu", "emulated", "--only", name, "--out", out, "--limit", PATIENCE]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(out.read_text())["programs"][name]
    assert row["same"] and row["same twice"] and row["steps compared"] > 30, row
