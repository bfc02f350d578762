"""Programs that come to declared data by ways that its worker does not see from a kernel's arguments."""

import sys

import pytest
from conftest import APPS
from harness import CommandError
from nodes import COUNT, node_with, numbers


def start(node, url, way):
    node.rekindle.run("reach", sys.executable, APPS / "reach.py", url, COUNT, way)


def found(node):
    node.rekindle.wait(lambda: any(line.startswith("found") for line in node.rekindle.lines("reach")), "a number")
    return [line for line in node.rekindle.lines("reach") if line.startswith("found")]


@pytest.mark.parametrize("way", ["pinned", "mapped", "uploaded"])
def test_an_address_in_memory_is_followed_when_all_is_there(way):
    with node_with(REKINDLE_FAULT="data-piece:hang") as node:
        array = numbers(1)
        _, url = node.file(array)
        start(node, url, way)
        # An upload of pageable memory is itself waited for.
        line = "asked" if way == "uploaded" else "launched"
        node.rekindle.wait(lambda: line in node.rekindle.lines("reach"), line)
        node.rekindle.reached("data-piece")
        assert "found" not in node.rekindle("logs", "reach")
        node.rekindle.let_go("data-piece")
        assert found(node) == [f"found {array[-1]}"]


def test_a_checkpoint_waits_for_data_and_a_restore_has_it():
    with node_with(REKINDLE_FAULT="data-piece:hang") as node:
        array = numbers(2)
        place, url = node.file(array)
        start(node, url, "pinned")
        node.rekindle.wait(lambda: "launched" in node.rekindle.lines("reach"), "the launch")
        node.rekindle.reached("data-piece")
        taking = node.rekindle.begin("checkpoint", "reach", "--to", "loaded", "--stop")
        node.rekindle.let_go("data-piece")
        taking.end()
        place.unlink()
        node.rekindle.restore("loaded", "again")
        node.rekindle.wait(lambda: "on" in node.rekindle.lines("again"), "the program")
        logs = node.rekindle("logs", "reach") + node.rekindle("logs", "again")
        assert f"found {array[-1]}" in logs


def fail(node, way):
    """Starts a program whose data turns out to be nowhere when it has the array."""
    start(node, (node.rekindle.root / "nowhere").as_uri(), way)
    node.rekindle.wait(lambda: "asked" in node.rekindle.lines("reach"), "the array")
    node.rekindle.let_go("data-look")


def test_what_names_data_that_cannot_be_had_is_refused_and_no_image_has_it():
    with node_with(REKINDLE_FAULT="data-look:hang") as node:
        fail(node, "refused")
        assert found(node)[0] == "found 7"
        lines = node.rekindle.lines("reach")
        assert lines[1] == "DataNotFoundError" and lines[2] == "copied 304", lines
        node.rekindle.wait(lambda: "on" in node.rekindle.lines("reach"), "the program")
        # It was let go of, so that an image can be taken.
        node.rekindle("checkpoint", "reach", "--to", "without", "--stop")


def test_a_program_that_keeps_data_which_cannot_be_had_is_not_taken():
    with node_with(REKINDLE_FAULT="data-look:hang") as node:
        fail(node, "nothing")
        node.rekindle.wait(lambda: "on" in node.rekindle.lines("reach"), "the program")
        with pytest.raises(CommandError, match="holds data that could not be loaded, and has to free it .* is not there"):
            node.rekindle("checkpoint", "reach", "--to", "image", "--leave-running")
        node.rekindle.wait(lambda: node.rekindle.sandbox("reach")["pid"], "the program")
