"""Arrays that functions hand on from node to node: they come over whole or not at all, and what refuses says so in a sentence."""

import concurrent.futures
import contextlib
import os
import signal
import sys

import numpy
import pytest
import rekindle as package
from conftest import begun
from harness import free_port
from test_exchange import APP, BYTES, CLASS, COUNT, GIVEN, ROOM, TOTAL, Pair

MORE = """
    @rekindle.method()
    def make(self, count):
        return doubled(cuda.to_device(numpy.arange(count, dtype="int32")))

    @rekindle.method()
    def add(self, array):
        return int(doubled(cuda.as_cuda_array(array)).copy_to_host().sum(dtype="int64"))

    @rekindle.method()
    def both(self, *values):
        return list(values)
"""
ALONE = """
import sys
import rekindle

try:
    rekindle.get(rekindle.Ref(sys.argv[1], "int32", (int(sys.argv[2]),)))
except rekindle.RefAccessError as error:
    print(error)
"""
NOTHING = (0, 0, 0, 0)


class Site(Pair):
    """A node with an app whose class gives and takes."""

    def __init__(self, rekindle, port):
        super().__init__(rekindle)
        self.port = port

    def deploy(self, name="hand"):
        self.deployer.app(name, APP + MORE + CLASS.format(name="Hands", share=False, gpu="emulated"))
        port = self.deployer.service(f"{name}-Hands")["port"]
        return package.Cls.from_name(name, "Hands", url=f"http://127.0.0.1:{port}")()

    def knows(self, name, other, *options):
        key = other.rekindle.json("node", "id")["key"]
        self.rekindle("node", "add", name, f"127.0.0.1:{other.port}", key, *options)

    def daemon_log(self):
        return (self.rekindle.state / "daemon.log").read_text()

    def sent(self):
        return self.daemon_log().count(f"sent {BYTES} bytes of an array")


@contextlib.contextmanager
def site(**environment):
    port = free_port()
    with begun(REKINDLE_NODE_PORT=f"127.0.0.1:{port}", **environment) as rekindle:
        yield Site(rekindle, port)


class Two:
    """`home`, where `giver` is, and `away`, where `taker` is: the same app."""

    def __init__(self, home, away):
        self.home, self.away = home, away
        home.knows("away", away, "--arrays")
        away.knows("home", home, "--arrays")
        self.giver, self.taker = home.deploy(), away.deploy()

    def is_clean(self, *refs):
        for ref in refs:
            self.giver.drop.remote(ref)
        self.home.come_to(*NOTHING)
        self.away.come_to(*NOTHING)


@contextlib.contextmanager
def two_with(home=None, away=None):
    with site(**(home or {})) as one, site(**(away or {})) as other:
        yield Two(one, other)


@pytest.fixture(scope="module")
def two():
    """For tests that leave nothing behind."""
    with two_with() as nodes:
        yield nodes


def test_an_array_of_another_node_is_fetched_once_and_is_this_node_s_then(two):
    ref = two.giver.give.remote(COUNT)
    assert ref.id.startswith(two.home.rekindle.json("node", "id")["key"][:8])
    sent = two.home.sent()
    assert two.taker.total.remote(ref) == TOTAL
    two.taker.hold.remote(ref)
    assert two.away.counts() == (1, 1, ROOM, 0)
    assert two.home.counts() == (1, 0, ROOM, 0)
    assert two.home.sent() == sent + 1
    # The copy does not need the array any more.
    two.giver.drop.remote(ref)
    two.home.come_to(*NOTHING)
    assert two.taker.total.remote(ref) == TOTAL
    assert numpy.array_equal(two.taker.held.remote()[0], GIVEN)
    two.taker.free.remote()
    # Whoever drops it drops both, and one that is gone at its node is no error.
    two.taker.drop.remote(ref)
    two.is_clean()
    with pytest.raises(package.RefNotFoundError, match=f'^node "home": the array {ref.id} is not there'):
        two.taker.total.remote(ref)


def test_who_drops_an_array_drops_it_at_its_node(two):
    ref = two.giver.give.remote(COUNT)
    two.taker.drop.remote(ref)
    two.is_clean()
    with pytest.raises(package.RefNotFoundError, match="is not there"):
        two.taker.drop.remote(ref)


def test_several_at_once_have_it_fetched_once(two):
    ref, sent = two.giver.give.remote(COUNT), two.home.sent()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        assert list(threads.map(lambda _: two.taker.total.remote(ref), range(4))) == [TOTAL] * 4
    assert two.home.sent() == sent + 1
    two.taker.drop.remote(ref)
    two.is_clean()


def test_the_copy_expires_by_itself(two):
    # The instance is awake when it is asked.
    assert two.taker.held.remote() == []
    ref = two.giver.give.remote(COUNT, expiry=4)
    two.taker.hold.remote(ref)
    two.home.come_to(*NOTHING)
    assert two.away.counts() == (1, 1, ROOM, 0)
    two.taker.free.remote()
    two.is_clean()


def test_what_has_expired_is_gone_for_other_nodes_too(two):
    ref = two.giver.give.remote(COUNT, expiry=0.05)
    two.home.come_to(*NOTHING)
    with pytest.raises(package.RefNotFoundError, match='^node "home": .*has expired'):
        two.taker.total.remote(ref)
    two.is_clean()


def test_uses_are_counted_where_the_array_is(two):
    flow = package.Workflow(least=1)
    made = flow.step(two.giver.make)
    first, second = flow.step(two.taker.add, made), flow.step(two.taker.add, made)
    flow.step(two.giver.both, first, second)
    sent = two.home.sent()
    assert flow.remote(COUNT) == [TOTAL, TOTAL]
    # None of them has the other's.
    assert two.home.sent() == sent + 2
    two.is_clean()


def test_another_app_does_not_get_it(two):
    stranger = two.away.deploy("other")
    ref = two.giver.give.remote(COUNT)
    for method in (stranger.total, stranger.drop):
        with pytest.raises(package.RefAccessError, match='^node "home": .*belongs to another app or tenant than app:other'):
            method.remote(ref)
    # Nor from the copy.
    assert two.taker.total.remote(ref) == TOTAL
    with pytest.raises(package.RefAccessError, match="belongs to another app or tenant than app:other"):
        stranger.total.remote(ref)
    two.taker.drop.remote(ref)
    two.is_clean()


def test_a_program_that_hands_on_with_nobody_gets_nothing_from_other_nodes(two):
    ref, sent = two.giver.give.remote(COUNT), two.home.sent()
    two.away.rekindle("run", "-d", "--name", "alone", "--", sys.executable, "-c", ALONE, ref.id, COUNT)
    (said,) = two.away.rekindle.wait_end("alone")
    assert said.startswith(f"the array {ref.id} is at another node, and this program has nobody there")
    assert two.home.sent() == sent
    two.is_clean(ref)


def test_nodes_that_were_not_told_hand_no_arrays_on(two):
    ref = two.giver.give.remote(COUNT)

    def fails(words):
        with pytest.raises(package.RefNodeError, match=words):
            two.taker.total.remote(ref)

    two.away.knows("home", two.home)
    fails('is at node "home", which was added without --arrays')
    two.away.knows("home", two.home, "--arrays")
    two.home.knows("away", two.away)
    fails("hands no arrays on with the node that asks")
    two.home.rekindle("node", "rm", "away")
    fails("does not know this node")
    two.home.knows("away", two.away, "--arrays")
    two.away.rekindle("node", "rm", "home")
    fails(f"whose key begins with {ref.id[:8]}, and none such is known here")
    two.away.rekindle("node", "add", "home", f"127.0.0.1:{free_port()}", two.home.rekindle.json("node", "id")["key"], "--arrays")
    fails("cannot be reached")
    two.away.knows("home", two.home, "--arrays")
    assert two.taker.total.remote(ref) == TOTAL
    two.taker.drop.remote(ref)
    two.is_clean()


def test_a_size_that_is_not_the_array_s_is_refused_before_it_is_sent(two):
    ref, sent = two.giver.give.remote(COUNT), two.home.sent()
    other = package.Ref(ref.id, ref.dtype, (COUNT + 1,))
    with pytest.raises(package.RefError, match=f"has {BYTES} bytes at its node, and its shape and dtype say {BYTES + 4}"):
        two.taker.total.remote(other)
    assert two.home.sent() == sent
    two.is_clean(ref)


def test_an_array_that_had_to_leave_its_gpu_is_sent_from_the_host():
    limits = {"REKINDLE_EXCHANGE_GPU": "4M", "REKINDLE_EXCHANGE_HOST": str(3 * BYTES)}
    with two_with(home=limits) as two:
        refs = [two.giver.give.remote(COUNT) for _ in range(3)]
        assert two.home.counts() == (3, 0, 2 * ROOM, BYTES)
        assert [two.taker.total.remote(ref) for ref in refs] == [TOTAL] * 3
        assert two.home.counts() == (3, 0, 2 * ROOM, BYTES)


def test_a_node_without_room_says_so_and_nothing_is_sent():
    with two_with(away={"REKINDLE_EXCHANGE_HOST": "1M"}) as two:
        ref = two.giver.give.remote(COUNT)
        with pytest.raises(package.RefMemoryError, match="is at another node, and the host has no room.*--exchange-host"):
            two.taker.total.remote(ref)
        assert two.home.sent() == 0
        two.is_clean(ref)


def test_a_node_that_dies_in_the_middle_leaves_nothing():
    with two_with(home={"REKINDLE_FAULT": "array-sending:hang"}) as two:
        ref = two.giver.give.remote(COUNT)
        call = two.taker.total.spawn(ref)
        two.home.rekindle.reached("array-sending")
        two.home.end_daemon()
        with pytest.raises(package.RefNodeError, match='^node "home": '):
            call.get(timeout=30)
        assert two.away.counts() == NOTHING
        two.home.rekindle.let_go("array-sending")
        # It hands on as before, once it is back.
        two.home.deployer.come_to("hand-Hands", "running")
        again = two.giver.give.remote(COUNT)
        assert two.taker.total.remote(again) == TOTAL


def test_an_array_that_is_dropped_while_it_is_sent_still_comes():
    with two_with(home={"REKINDLE_FAULT": "array-sending:hang"}) as two:
        ref = two.giver.give.remote(COUNT)
        call = two.taker.total.spawn(ref)
        two.home.rekindle.reached("array-sending")
        two.giver.drop.remote(ref)
        two.home.rekindle.let_go("array-sending")
        assert call.get() == TOTAL
        two.home.come_to(*NOTHING)


def test_a_taker_whose_memory_daemon_dies_in_the_middle_leaves_nothing():
    with two_with(home={"REKINDLE_FAULT": "array-sending:hang"}) as two:
        ref = two.giver.give.remote(COUNT)
        call = two.taker.total.spawn(ref)
        two.home.rekindle.reached("array-sending")
        (memory,) = two.away.memory_daemons()
        os.kill(memory, signal.SIGKILL)
        with pytest.raises(package.RefUnavailableError, match="the memory daemon cannot be reached"):
            call.get(timeout=30)
        two.home.rekindle.let_go("array-sending")
        assert two.taker.total.remote(ref) == TOTAL
        two.taker.drop.remote(ref)
        two.is_clean()


def test_bytes_that_were_changed_on_the_way_are_refused():
    with two_with(home={"REKINDLE_FAULT": "array-spoilt"}) as two:
        ref = two.giver.give.remote(COUNT)
        with pytest.raises(package.RefNodeError, match='is not what node "home" has: its hash is another one'):
            two.taker.total.remote(ref)
        assert two.away.counts() == NOTHING
        two.is_clean(ref)


def test_a_copy_to_the_host_that_fails_is_told_of():
    with two_with(home={"REKINDLE_FAULT": "exchange-move"}) as two:
        ref = two.giver.give.remote(COUNT)
        with pytest.raises(package.RefGpuError, match='^node "home": .*could not be copied to the host'):
            two.taker.total.remote(ref)
        two.is_clean(ref)
