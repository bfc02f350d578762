"""How much memory a request needs is shown by `profile`, and kept with the image for programs that are restored from it."""

import json
from pathlib import Path

from test_share_memory import MB, Program


def test_a_profile_says_what_a_request_needs_and_is_kept_with_the_image(rekindle):
    one = Program(rekindle)
    assert one(f"alloc a {16 * MB}") == one(f"alloc b {16 * MB}") == one("launch a 1") == "ok"
    rekindle("checkpoint", "one", "--to", "image", "--stop")
    # It reads the same lines.
    request = (
        f'echo "launch b 2" >> {one.commands}; until {rekindle.command} logs "$REKINDLE_SANDBOX" | grep -q "launch b 2: ok"; do sleep 0.05; done'
    )
    shown = json.loads(rekindle("--json", "profile", "image", "--share", "us", "--gpu", rekindle.gpu, "--", "sh", "-c", request))
    (memory,) = shown["memory"]
    assert [level for _, level in memory["held"]] == [16 * MB]
    assert memory["used"][0][1] == 16 * MB and memory["allocated_bytes"] >= 32 * MB
    kept = json.loads((Path(rekindle.json("inspect", "image")["path"]) / "memory-demand.json").read_text())
    assert [[change[0], change[2]] for change in kept["gpus"][0][-1]["changes"]] == memory["held"]
    rekindle("verify", "image")
