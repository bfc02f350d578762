"""A running program moves to another node, and the link or the other disk gives out in the middle: exactly one node goes on with it."""

import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from rekindle import CommandError
from test_bad_input import kill_daemon
from test_nodes import Wired, kill_there


def sentence(moving):
    """Why it stays here."""
    with pytest.raises(CommandError) as error:
        moving.end()
    message = error.value.message
    assert error.value.code == 1 and "\n" not in message, message
    return message


@pytest.mark.parametrize(("begins", "ends", "count"), [("node-begun", "node-round", 1 << 20), ("node-stopped", "node-sent", 20_000)])
def test_the_link_is_cut_while_an_image_is_on_its_way(begins, ends, count):
    with Wired() as pair:
        pair.here.hold_again(ends)
        moving = pair.hangs_at(begins)
        pair.wire.cut_after(count)
        pair.here.let_go(begins)
        sentence(moving)
        assert not pair.wire.is_whole and not (pair.here.marks / ends).exists()
        pair.runs_at(pair.here)
        pair.wire.mend()
        pair.here.let_go(ends)
        assert pair.migrate()["node"] == "there"
        pair.end(pair.there)


def test_the_link_is_cut_while_it_stands_still():
    with Wired() as pair:
        moving = pair.hangs_at("node-stopped")
        pair.wire.cut()
        pair.here.let_go("node-stopped")
        sentence(moving)
        pair.wire.mend()
        pair.runs_at(pair.here)
        moving = pair.hangs_at("node-held")
        pair.wire.cut()
        pair.here.let_go("node-held")
        pair.waits()
        pair.wire.mend()
        sentence(moving)
        pair.runs_at(pair.here)
        moving = pair.hangs_at("node-told")
        pair.wire.cut()
        pair.here.let_go("node-told")
        moving.end()
        assert pair.here.sandbox("count")["node"] == "there"
        pair.end(pair.there)


def test_the_disk_there_is_full_when_the_last_image_comes_when_it_is_restored_and_when_the_word_comes(disk):
    with Wired(there={"state": disk.path}) as pair:
        for point in ("node-stopped", "node-sent", "node-held"):
            moving = pair.hangs_at(point)
            disk.fill()
            pair.here.let_go(point)
            message = sentence(moving)
            assert point == "node-held" or "full" in message or "space" in message, message
            pair.runs_at(pair.here)
            disk.empty()
        assert pair.migrate()["node"] == "there"
        pair.end(pair.there)


DAY = 24 * 3600


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, Path(__file__).parent / "nodes/clock.c", "-ldl"], check=True)
    return library


def test_the_clock_there_is_a_day_behind(clock):
    with Wired(there={"LD_PRELOAD": str(clock), "CLOCK_AHEAD": str(-DAY)}) as pair:
        moving = pair.hangs_at("node-given")
        pair.wire.cut()
        kill_daemon(pair.here)
        pair.here.let_go("node-given")
        with pytest.raises(CommandError):
            moving.end()
        pair.waits()
        pair.wire.mend()
        pair.runs_at(pair.here)
        kill_there(pair, "arrival-running").end()
        pair.runs_at(pair.there)
        began = [datetime.fromisoformat(node.sandbox("count")["started"]) for node in (pair.here, pair.there)]
        assert abs((began[1] - began[0]).total_seconds() + DAY) < DAY / 2, began
        pair.there("migrate", "count", "--to", "here")
        pair.end(pair.here)


def test_a_link_that_is_cut_while_an_image_is_on_its_way_is_said_with_its_node():
    with Wired() as pair:
        moving = pair.hangs_at("node-begun")
        pair.wire.cut_after(1 << 20)
        pair.here.let_go("node-begun")
        assert '"there"' in sentence(moving)
        pair.end(pair.here)


def test_a_disk_there_that_is_full_when_the_word_comes_is_said(disk):
    with Wired(there={"state": disk.path}) as pair:
        moving = pair.hangs_at("node-held")
        disk.fill()
        pair.here.let_go("node-held")
        message = sentence(moving)
        assert "full" in message or "space" in message, message
        disk.empty()
        pair.end(pair.here)
