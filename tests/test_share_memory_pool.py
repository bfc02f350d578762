"""Memory that one program of a shared context has freed, or that was made ahead, is there for the first uses of the others."""

import pytest
from rekindle import Rekindle
from test_share_memory import GPU, LAZY, LITTLE, MB, Program, worker


@pytest.fixture
def restless():
    """Its programs count as at work, however long they have asked for nothing: what they have freed is not given back."""
    with Rekindle(REKINDLE_FAULT="freed-given-back") as instance:
        yield instance


def pool(one):
    return one.stats()["pool_bytes"]


def has(rekindle, one, megabytes):
    """Waits until the pool has so much: what was made ahead for a request that does not come is there for a moment."""
    rekindle.wait(lambda: pool(one) == megabytes * MB, f"{megabytes} MB in the pool", 20)


def test_what_one_has_freed_is_anothers_at_once(restless):
    one, other = Program(restless, "one"), Program(restless, "other")
    assert worker(restless, "one") == worker(restless, "other")
    for way, size in (("free", 16), ("freed", 20)):
        assert one(f"alloc {way}-a {size * MB}") == one(f"launch {way}-a 1") == one(f"{way} {way}-a") == "ok"
        has(restless, other, size)
        hits, misses = other.counts()
        assert other(f"alloc {way}-b {size * MB}") == other(f"launch {way}-b 2") == "ok"
        assert other.counts() == (hits + 1, misses)
        has(restless, other, 0)
        # Who has freed it gets other memory.
        assert one(f"allocated {way}-c {size * MB}") == one(f"launch {way}-c 3") == "ok"
        assert (one(f"word {way}-c"), other(f"word {way}-b")) == ("3 True", "2 True")
        # And has what it frees itself at another address.
        assert one(f"free {way}-c") == "ok"
        has(restless, other, size)
        assert one(f"alloc {way}-d {size * MB}") == one(f"up {way}-d 4") == "ok"
        assert (one(f"word {way}-d"), other(f"word {way}-b")) == ("4 True", "2 True")
        has(restless, other, 0)


def test_who_allocates_again_what_it_has_freed_has_it_without_a_first_use(restless):
    one = Program(restless)
    assert one(f"allocated a {16 * MB}") == one("launch a 1") == one("freed a") == "ok"
    has(restless, one, 16)
    before = one.counts()
    assert one(f"allocated b {16 * MB}") == one("launch b 2") == "ok"
    assert (one("word b"), one.counts()) == ("2 True", before)
    has(restless, one, 0)


def test_the_pool_goes_when_programs_rest(rekindle):
    one, other = Program(rekindle, "one"), Program(rekindle, "other")
    for way in ("free", "freed"):
        assert one(f"alloc a {16 * MB}") == one("launch a 1") == one(f"{way} a") == "ok"
        has(rekindle, other, 0)
        one.has(0, 0)


def test_the_pool_goes_when_who_has_freed_it_ends(restless):
    one, other = Program(restless, "one"), Program(restless, "other")
    assert one(f"alloc a {16 * MB}") == one("launch a 1") == one("freed a") == "ok"
    has(restless, other, 16)
    assert other(f"alloc b {16 * MB}") == other("launch b 2") == "ok"
    assert one(f"alloc c {16 * MB}") == one("launch c 1") == one("free c") == "ok"
    has(restless, other, 16)
    restless("kill", "one")
    has(restless, other, 0)
    assert other("word b") == "2 True"


def test_whoever_lacks_memory_gets_what_lies_in_the_pool(restless):
    one, other = Program(restless, "one", gpu=GPU), Program(restless, "other", gpu=GPU)
    assert one(f"alloc x {64 * MB}") == one("launch x 9") == "ok"
    for number, way in enumerate(("free", "freed")):
        assert one(f"alloc a{number} {24 * MB}") == one(f"launch a{number} 1") == one(f"{way} a{number}") == "ok"
        has(restless, other, 24)
        # It counts as free; no memory of that size is there, and too little is left otherwise.
        assert int(other(f"info {way}")) >= 176
        assert other(f"alloc b{number} {176 * MB}") == other(f"launch b{number} 2") == "ok"
        has(restless, other, 0)
        assert (other(f"word b{number}"), other(f"free b{number}"), one("word x")) == ("2 True", "ok", "9 True")
        assert one(f"allocated c{number} {24 * MB}") == one(f"launch c{number} 3") == "ok"
        assert (one(f"word c{number}"), one(f"free c{number}")) == ("3 True", "ok")
        # Its own.
        assert one(f"alloc d{number} {176 * MB}") == one(f"launch d{number} 4") == "ok"
        assert (one(f"word d{number}"), one(f"free d{number}")) == ("4 True", "ok")


def test_an_image_is_right_whatever_was_passed_on(restless):
    one, other = Program(restless, "one"), Program(restless, "other")
    for name in "ab":
        assert one(f"alloc {name} {16 * MB}") == one(f"launch {name} 1") == "ok"
    assert one("freed a") == "ok"
    has(restless, other, 16)
    assert other(f"alloc c {16 * MB}") == other("launch c 2") == "ok"
    restless("checkpoint", "one", "--to", "going", "--leave-running")
    assert one(f"allocated d {16 * MB}") == one("launch d 3") == one("free b") == "ok"
    restless("checkpoint", "one", "--to", "image", "--stop")
    for image in ("going", "image"):
        restless("verify", image)
        held = sum(part["bytes"] for part in restless.json("inspect", image)["parts"] if part["kind"] == "gpu-buffer")
        assert 16 * MB <= held < 16 * MB + LITTLE
    again = one.restored("image", "again", "--share", "us")
    assert (again("word d"), other("word c")) == ("3 True", "2 True")
    assert again(f"alloc e {16 * MB}") == again("launch e 4") == "ok"
    assert (again("word e"), again("word d"), other("word c")) == ("4 True", "3 True", "2 True")


def test_who_goes_on_elsewhere_after_a_fault_leaves_the_pool_behind(rekindle):
    one, rests = Program(rekindle, "one"), Program(rekindle, "rests")
    assert rests(f"alloc a {16 * MB}") == rests(f"alloc b {16 * MB}") == rests("launch a 1") == rests("launch b 2") == "ok"
    assert rests("freed b") == "ok"
    before = worker(rekindle, "rests")
    assert one(f"alloc a {16 * MB}") == one(f"alloc b {16 * MB}") == one("launch a 1") == "ok"
    assert "ILLEGAL_ADDRESS" in one("computed b a 2")
    rekindle.wait(lambda: rekindle.sandbox("rests")["workers"] not in ([], [before]), "the other one to go on elsewhere")
    assert rests(f"allocated c {16 * MB}") == rests("launch c 3") == "ok"
    assert (rests("word a"), rests("word c")) == ("1 True", "3 True")


def test_with_mend_what_was_freed_is_allocated_again_where_it_was(rekindle):
    one = Program(rekindle, "one", (*LAZY, "--mend"))
    assert one(f"alloc a {16 * MB}") == one("launch a 1") == "ok"
    rekindle.wait(lambda: rekindle.sandbox("one")["mending"]["on"], "mending to be on")
    assert one("work on") == "ok"
    for number in range(4):
        assert one(f"allocated b {16 * MB}") == one(f"launch b {number}") == one("word b").replace(f"{number} True", "ok") == one("freed b") == "ok"
    assert one(f"allocated c {16 * MB}") == one("launch c 7") == one(f"alloc d {16 * MB}") == "ok"
    assert one("work off") == one("computed d a 8") == "ok"
    assert [one(f"word {name}") for name in "acd"] == ["1 True", "7 True", "8 True"]
    assert rekindle.sandbox("one")["problem"] is None


def test_what_a_request_needs_next_is_made_ahead(rekindle):
    one = Program(rekindle)

    def is_hit():
        # Nothing is there that it has freed.
        has(rekindle, one, 0)
        before = one.counts()
        assert one(f"request {16 * MB} 30") == "1 2"
        return one.counts()[0] > before[0]

    # The first one shows what requests need.
    assert not is_hit()
    rekindle.wait(is_hit, "memory that was made ahead", 20)
    has(rekindle, one, 0)
