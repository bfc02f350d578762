"""What a program has in the host's memory and on the GPU."""

import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "twice/weights.py"
WEIGHTS = 64 << 20


def test_pinned_memory_that_equals_gpu_memory_is_stored_once(rekindle):
    stored = {}
    for kind in ("pinned", "own"):
        rekindle.run(kind, sys.executable, PROGRAM, kind)
        rekindle.wait_lines(kind, 1)
        rekindle("checkpoint", kind, "--to", kind, "--leave-running")
        rekindle("kill", kind)
        sizes = rekindle.json("inspect", kind)["sizes"]
        assert sizes["gpu"] >= WEIGHTS and sizes["pinned" if kind == "pinned" else "cpu"] >= WEIGHTS, sizes
        stored[kind] = sizes["stored"]
        rekindle.restore(kind, f"{kind}-again")
        lines = rekindle.wait_lines(f"{kind}-again", len(rekindle.lines(f"{kind}-again")) + 2)
        assert set(lines) == {"same"}, lines
        rekindle("kill", f"{kind}-again")
    # Memory of its own lies in files that a restore maps, beside the chunks.
    assert stored["pinned"] + 0.9 * WEIGHTS < stored["own"] < stored["pinned"] + 1.2 * WEIGHTS, stored
