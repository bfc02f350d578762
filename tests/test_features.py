"""One small GPU program a feature: set up, checkpoint, stop, restore, verify; also what is left running by a checkpoint."""

import sys
from pathlib import Path

import pytest

FEATURES = Path(__file__).parent / "features"
NAMES = sorted(p.stem for p in FEATURES.glob("*.py") if p.stem != "gpu")
# Those of which a single process uses the GPU, and which take no seconds of the processor.
ALONE = [name for name in NAMES if name not in ("processes", "many_events")]


@pytest.mark.parametrize("name", NAMES)
def test_feature_survives(rekindle, name):
    go = rekindle.root / "go"
    rekindle.run(name, sys.executable, FEATURES / f"{name}.py", go)
    assert rekindle.wait_lines(name, 1)[:1] == ["ready"], rekindle.lines(name)
    rekindle("checkpoint", name, "--to", "running", "--leave-running")
    rekindle("checkpoint", name, "--to", "stopped", "--stop")
    assert not rekindle.sandbox(name)["pid"]
    for image in ("running", "stopped"):
        rekindle("verify", image)
        rekindle.restore(image, f"from-{image}")
    rekindle("checkpoint", "from-running", "--to", "later", "--leave-running")
    go.touch()
    for image in ("running", "stopped"):
        assert rekindle.wait_end(f"from-{image}") == ["ok"]
