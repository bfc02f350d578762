"""How much memory a request needs is shown by `profile`, and kept with the image for programs that are restored from it."""

import json
from pathlib import Path

from test_share_memory import MB, Program
from test_share_memory_pool import has


def profile(one, image, line, answer):
    """What its restored program's memory is seen to need for this line, which it reads as the one that the image is of."""
    rekindle = one.rekindle
    request = f'echo "{line}" >> {one.commands}; until {rekindle.command} logs "$REKINDLE_SANDBOX" | grep -q "{line}: {answer}"; do sleep 0.05; done'
    shown = rekindle("--json", "profile", image, "--share", "us", "--gpu", rekindle.gpu, "--", "sh", "-c", request)
    return json.loads(shown)["memory"]


def kept(rekindle, image):
    return json.loads((Path(rekindle.json("inspect", image)["path"]) / "memory-demand.json").read_text())


def first_request(one, image, name):
    """Hits and misses of the first request of a program that was restored from an image."""
    again = one.restored(image, name, "--share", "us")
    # What others had is gone.
    has(one.rekindle, again, 0)
    # Its second buffer is named later than when it was profiled.
    assert again(f"request {16 * MB} 400") == "1 2"
    counts = again.counts()
    one.rekindle("kill", name)
    return counts


def test_a_profile_says_what_a_request_needs_and_is_kept_with_the_image(rekindle):
    one = Program(rekindle)
    assert one(f"alloc a {16 * MB}") == one(f"alloc b {16 * MB}") == one("launch a 1") == "ok"
    rekindle("checkpoint", "one", "--to", "image", "--stop")
    (memory,) = profile(one, "image", "launch b 2", "ok")
    assert [level for _, level in memory["held"]] == [16 * MB]
    assert memory["used"][0][1] == 16 * MB and memory["allocated_bytes"] >= 32 * MB
    changes = kept(rekindle, "image")["gpus"][0][-1]["changes"]
    assert [[change[0], change[2]] for change in changes] == memory["held"]
    rekindle("verify", "image")


def test_a_restored_program_s_first_request_finds_what_the_profile_of_its_image_says(rekindle):
    one = Program(rekindle)
    assert one("info start") != ""
    for image in ("profiled", "other"):
        rekindle("checkpoint", "one", "--to", image, "--leave-running")
    rekindle("kill", "one")
    before = one.commands.read_text()
    profile(one, "profiled", f"request {16 * MB} 30", "1 2")
    # What it frees after a pause may count as a request of its own.
    kinds = [[change[2] for change in kind["changes"] if change[2] > 0] for kind in kept(rekindle, "profiled")["gpus"][0]]
    assert [16 * MB, 16 * MB] in kinds
    # For its first buffer there is hardly any time; for the second one there is.
    for image, expected in (("other", [(0, 2)]), ("profiled", [(1, 1), (2, 0)])):
        # Each reads its request as the first line after the image.
        one.commands.write_text(before)
        assert first_request(one, image, f"of-{image}") in expected
