"""GPU arrays as arguments and results of calls from node to node: fetched by the other node, or sent by their bytes, and nothing is left."""

import contextlib
import sys

import pytest
from harness import BINARIES
from test_exchange_nodes import site

COUNT, BYTES, NOTHING = 300_000, 1_200_000, (0, 0, 0, 0)
OWNER = "share:team"

TAKER = """
import numpy
from numba import cuda

@app.cls(gpu="emulated", share="team", max_containers=1, concurrency=4, timeout=5)
class Taker:
    @rekindle.method()
    def double(self, array, mark=None):
        assert type(array) is rekindle.DeviceArray, type(array)
        if mark:
            Path(mark + ".held").touch()
            while not Path(mark + ".go").exists():
                time.sleep(0.01)
        return cuda.to_device(2 * array.copy_to_host())

    @rekindle.method()
    def fail(self, array):
        raise ValueError(type(array).__name__)
"""
CALLER = f"""
import sys, time
import numpy, rekindle
from numba import cuda

taker = rekindle.Cls.from_name("there", "Taker", url=sys.argv[1])()

def made(count={COUNT}):
    return cuda.to_device(numpy.arange(count, dtype="int32"))

def is_doubled(found, count={COUNT}):
    return type(found) is rekindle.DeviceArray and numpy.array_equal(found.copy_to_host(), 2 * numpy.arange(count, dtype="int32"))

"""


class Between:
    """A function at one node, and programs at the other one that call it."""

    def __init__(self, there, here):
        self.there, self.here = there, here
        there.deployer.app("there", TAKER)
        self.url = f"http://127.0.0.1:{there.deployer.service('there-Taker')['port']}"
        there.knows("here", here, "--arrays")
        here.knows("there", there, "--arrays")

    def begin(self, source, name="caller"):
        self.here.rekindle("run", "-d", "--name", name, "--gpu", "emulated", "--share", "team", "--", sys.executable, "-c", CALLER + source, self.url)

    def say(self, source, name="caller"):
        self.begin(source, name)
        said = self.here.rekindle.wait_end(name)
        self.here.rekindle("rm", "--sandbox", name)
        return said

    def counts(self):
        return self.there.counts(OWNER), self.here.counts(OWNER)

    def is_clean(self):
        self.here.rekindle.wait(lambda: self.counts() == (NOTHING, NOTHING), f"all arrays to be gone, of {self.counts()}")


@contextlib.contextmanager
def between():
    settings = {"REKINDLE_COMMAND": str(BINARIES / "rekindle")}
    with site(**settings) as one, site(**settings) as other:
        yield Between(one, other)


@pytest.fixture(scope="module")
def nodes():
    with between() as two:
        yield two


def test_an_array_goes_to_another_node_by_reference_and_its_result_comes_by_its_bytes(nodes):
    sent = nodes.here.sent()
    assert nodes.say("print(all(is_doubled(taker.double.remote(made())) for _ in range(3)))") == ["True"]
    assert nodes.here.sent() == sent + 3 and nodes.there.sent() == 0
    # Neither what was put here nor the copies there.
    nodes.is_clean()


def test_a_small_array_goes_to_another_node_by_its_bytes(nodes):
    sent = nodes.here.sent()
    assert nodes.say("print(is_doubled(taker.double.remote(made(1000)), 1000))") == ["True"]
    assert nodes.here.sent() == sent
    nodes.is_clean()


def test_one_that_fails_or_takes_too_long_at_another_node_leaves_nothing(nodes):
    source = """
try:
    taker.fail.remote(made())
except ValueError as error:
    print(error)
try:
    taker.double.remote(made(), {mark!r})
except rekindle.FunctionTimeoutError:
    print("late")
"""
    mark = nodes.there.deployer.mark("late")
    assert nodes.say(source.format(mark=mark)) == ["DeviceArray", "late"]
    nodes.there.deployer.let_go("late")
    nodes.is_clean()


def test_a_reference_is_passed_as_one_and_stays_until_it_is_dropped(nodes):
    source = """
ref = rekindle.put(made())
print(is_doubled(taker.double.remote(rekindle.get(ref))))
ref.drop()
"""
    assert nodes.say(source) == ["True"]
    nodes.is_clean()


def test_between_nodes_that_hand_no_arrays_on_they_go_by_their_bytes():
    with between() as nodes:
        nodes.there.knows("here", nodes.here)
        assert nodes.say("print(all(is_doubled(taker.double.remote(made())) for _ in range(2)))") == ["True"]
        assert nodes.here.sent() == nodes.there.sent() == 0
        nodes.is_clean()


def test_a_caller_that_is_killed_leaves_nothing_at_either_node(nodes):
    mark = nodes.there.deployer.mark("killed")
    nodes.begin(f"rekindle.exchange.EXPIRY = 2.0\ntaker.double.remote(made(), {mark!r})", "killed")
    nodes.there.deployer.held("killed")
    (there, here) = nodes.counts()
    assert there[:2] == (1, 1) and here[0] == 1
    nodes.here.rekindle("kill", "killed")
    nodes.there.deployer.let_go("killed")
    nodes.is_clean()
