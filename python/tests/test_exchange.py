"""Arrays that functions hand on: they lie on the GPU once, outlive their givers, and what cannot be had is said in a sentence."""

import contextlib
import os
import signal
import sys

import numpy
import pytest
import rekindle as package
from conftest import begun
from nodes import Node

APP = """
import numpy
from numba import cuda

@cuda.jit
def double(numbers, out):
    at = cuda.grid(1)
    if at < numbers.size:
        out[at] = 2 * numbers[at]

def doubled(array):
    out = cuda.to_device(numpy.zeros(array.size, array.dtype))
    double[(array.size + 63) // 64, 64](array, out)
    return out

class Both:
    @rekindle.enter()
    def compile(self):
        doubled(cuda.to_device(numpy.zeros(4, "int32"))).copy_to_host()
        self.arrays = []

    @rekindle.method()
    def give(self, count, **options):
        return rekindle.put(doubled(cuda.to_device(numpy.arange(count, dtype="int32"))), **options)

    @rekindle.method()
    def give_in_a_new_context(self, count):
        rekindle.put(cuda.to_device(numpy.zeros(count, "int32"))).drop()
        cuda.close()
        return rekindle.put(cuda.to_device(2 * numpy.arange(count, dtype="int32")))

    @rekindle.method()
    def give_host(self, array):
        return rekindle.put(array)

    @rekindle.method()
    def total(self, ref):
        return int(doubled(cuda.as_cuda_array(rekindle.get(ref))).copy_to_host().sum(dtype="int64"))

    @rekindle.method()
    def value(self, ref):
        return rekindle.get(ref)

    @rekindle.method()
    def hold(self, *refs):
        self.arrays += [rekindle.get(ref) for ref in refs]

    @rekindle.method()
    def held(self):
        return [array.copy_to_host() for array in self.arrays]

    @rekindle.method()
    def free(self):
        self.arrays.clear()

    @rekindle.method()
    def drop(self, ref):
        ref.drop()

    @rekindle.method()
    def fault(self):
        class Nowhere:
            __cuda_array_interface__ = {"shape": (4,), "typestr": "<i4", "data": (1 << 40, False), "version": 2}

        doubled(cuda.as_cuda_array(Nowhere())).copy_to_host()

    @rekindle.method()
    def take_all_memory(self):
        try:
            cuda.device_array(cuda.current_context().get_memory_info().total, "uint8")
        except cuda.cudadrv.driver.CudaAPIError as error:
            return str(error)
"""
CLASS = """
@app.cls(gpu={gpu!r}, sleep_window=0, share={share!r})
class {name}(Both):
    pass
"""
# Bytes of an array of this many numbers, and of the memory that it lies in.
COUNT, BYTES, ROOM = 300_000, 1_200_000, 2 << 20
# Of what is given, and of what the taker makes of it.
GIVEN = 2 * numpy.arange(COUNT, dtype="int32")
TOTAL = int(2 * GIVEN.sum(dtype="int64"))


class Pair(Node):
    """An app whose one class gives what the other takes."""

    def deploy(self, name="hand", *, share=False, classes=("Giver", "Taker"), gpus=("emulated",) * 3):
        self.deployer.app(name, APP + "".join(CLASS.format(name=one, share=share, gpu=gpu) for one, gpu in zip(classes, gpus)))
        return self.find(name)

    def find(self, name):
        return package.Cls.from_name(name, "Giver")(), package.Cls.from_name(name, "Taker")()

    def counts(self, owner="app:hand"):
        found = [row for row in self.rekindle.json("ps")["handed_on"] if row["owner"] == owner]
        return tuple(found[0][name] for name in ("arrays", "held", "gpu_bytes", "host_bytes")) if found else (0, 0, 0, 0)

    def moves(self):
        """How many arrays were moved: to other GPUs, to the host."""
        moves = self.rekindle.json("stats", "--no-stream")["handed_on_moves"]
        return moves["to_gpus"], moves["to_host"]

    def come_to(self, *counts):
        self.rekindle.wait(lambda: self.counts() == counts, f"the counts {counts}")

    def end(self, service):
        """Its instance, as a crash would."""
        (instance,) = self.deployer.service(service)["instances"]
        self.rekindle("kill", instance["name"])
        self.deployer.come_to(service)


@contextlib.contextmanager
def pair_with(**environment):
    with begun(**environment) as rekindle:
        yield Pair(rekindle)


@pytest.fixture(scope="module")
def pair():
    """For tests that leave nothing behind."""
    with pair_with() as one:
        one.deploy()
        yield one


def test_an_array_is_mapped_where_it_lies_and_outlives_its_giver(pair):
    giver, taker = pair.find("hand")
    ref = giver.give.remote(COUNT)
    assert (ref.dtype, ref.shape, ref.nbytes) == ("int32", (COUNT,), BYTES)
    assert pair.counts() == (1, 0, ROOM, 0)
    taker.hold.remote(ref)
    assert pair.counts() == (1, 1, ROOM, 0)
    # It is the taker's memory without being a copy.
    stats = pair.rekindle.json("stats", "--no-stream", "hand-Taker-1")
    (row,) = stats["sandboxes"]
    assert stats["handed_on"] == [{"owner": "app:hand", "arrays": 1, "held": 1, "gpu_bytes": ROOM, "host_bytes": 0}]
    assert row["shared_bytes"] == ROOM
    pair.end("hand-Giver")
    assert taker.total.remote(ref) == TOTAL
    pair.end("hand-Taker")
    pair.come_to(1, 0, ROOM, 0)
    assert taker.total.remote(ref) == TOTAL
    giver.drop.remote(ref)
    pair.come_to(0, 0, 0, 0)


def test_who_has_an_array_keeps_it_when_it_is_dropped(pair):
    giver, taker = pair.find("hand")
    ref = giver.give.remote(COUNT)
    taker.hold.remote(ref)
    giver.drop.remote(ref)
    with pytest.raises(package.RefNotFoundError, match=f"^the array {ref.id} is not there: it was dropped"):
        taker.total.remote(ref)
    assert numpy.array_equal(taker.held.remote()[0], GIVEN)
    taker.free.remote()
    pair.come_to(0, 0, 0, 0)


def test_who_has_an_array_keeps_what_it_is_while_the_next_ones_come(pair):
    giver, taker = pair.find("hand")
    held = giver.give.remote(COUNT)
    taker.hold.remote(held)
    giver.drop.remote(held)
    for count in range(COUNT, COUNT + 20):
        ref = giver.give.remote(count)
        assert taker.total.remote(ref) == 4 * sum(range(count))
        giver.drop.remote(ref)
    assert numpy.array_equal(taker.held.remote()[0], GIVEN)
    taker.free.remote()
    pair.come_to(0, 0, 0, 0)


def test_memory_that_was_kept_for_arrays_ends_with_its_context():
    with pair_with() as pair:
        pair.deploy()
        giver, taker = pair.find("hand")
        assert taker.total.remote(giver.give_in_a_new_context.remote(COUNT)) == TOTAL


def test_arrays_of_the_host_and_of_all_types_are_handed_on(pair):
    giver, taker = pair.find("hand")
    whole = numpy.arange(24).reshape(2, 3, 4)
    for array in (whole > 7, whole.astype("float16"), whole * 1j, whole.astype("uint8").T, numpy.float64(3.5)):
        ref = giver.give_host.remote(array)
        value = taker.value.remote(ref)
        assert value.dtype == array.dtype and numpy.array_equal(value, array)
        giver.drop.remote(ref)
    for array, words in ((whole.astype("M8[s]"), "of type datetime64"), (whole.astype(">i4"), "of type >i4"), (whole[:0], "no elements")):
        with pytest.raises(package.SerializationError, match=words):
            giver.give_host.remote(array)
    with pytest.raises(package.SerializationError, match="a value of type str is no array"):
        giver.give_host.remote("text")


def test_what_has_expired_is_gone(pair):
    giver, taker = pair.find("hand")
    ref = giver.give.remote(COUNT, expiry=0.05)
    pair.come_to(0, 0, 0, 0)
    with pytest.raises(package.RefNotFoundError, match="has expired"):
        taker.total.remote(ref)


def test_programs_outside_of_sandboxes_have_no_arrays(pair):
    with pytest.raises(package.RefUnavailableError, match="by programs in sandboxes alone"):
        package.put(numpy.zeros(4))


def test_sleep_and_images_have_what_an_instance_holds(pair):
    giver, taker = pair.find("hand")
    refs = [giver.give.remote(COUNT), giver.give_host.remote(GIVEN + 1)]
    taker.hold.remote(*refs)
    for level in ("gpu", "host", "disk"):
        pair.rekindle("sleep", "hand-Taker-1", "--level", level)
        # They are the instance's own from then on.
        pair.come_to(2, 0, 2 * ROOM, 0)
        first, second = taker.held.remote()
        assert numpy.array_equal(first, GIVEN) and numpy.array_equal(second, GIVEN + 1)
    taker.free.remote()
    for ref in refs:
        taker.drop.remote(ref)


def test_another_app_does_not_get_it(pair):
    giver, taker = pair.find("hand")
    _, stranger = pair.deploy("other", classes=["Taker"])
    ref = giver.give.remote(COUNT)
    for method in (stranger.total, stranger.drop):
        with pytest.raises(package.RefAccessError, match="belongs to another app or tenant than app:other"):
            method.remote(ref)
    assert taker.total.remote(ref) == TOTAL
    giver.drop.remote(ref)


def test_apps_of_one_tenant_have_each_others_arrays_in_one_context():
    with pair_with() as pair:
        giver, _ = pair.deploy("ours", share="us", classes=["Giver"])
        _, taker = pair.deploy("yours", share="us", classes=["Taker"])
        ref = giver.give.remote(COUNT)
        taker.hold.remote(ref)
        assert pair.counts("share:us") == (1, 1, ROOM, 0)
        pair.end("ours-Giver")
        assert taker.total.remote(ref) == TOTAL
        assert numpy.array_equal(taker.held.remote()[0], GIVEN)


@pytest.mark.parametrize("share", [None, "us"])
def test_who_has_just_handed_on_outlives_the_context_at_rest(share):
    with pair_with() as pair:
        giver, taker = pair.deploy(share=share, classes=("Giver", "Taker", "Faulty"))
        faulty = package.Cls.from_name("hand", "Faulty")()
        held, other = giver.give.remote(COUNT), giver.give.remote(COUNT)
        assert taker.total.remote(other) == TOTAL
        programs = [pair.rekindle.sandbox(f"hand-{name}-1") for name in ("Giver", "Taker")]
        with pytest.raises(package.Error):
            faulty.fault.remote()
        assert taker.total.remote(held) == taker.total.remote(other) == TOTAL
        assert taker.total.remote(giver.give.remote(COUNT)) == TOTAL
        for before in programs:
            after = pair.rekindle.sandbox(before["name"])
            assert (after["pid"], after["problem"]) == (before["pid"], None) and after["workers"] != before["workers"]


def test_a_memory_daemon_that_is_killed_takes_what_nobody_has():
    with pair_with() as pair:
        giver, taker = pair.deploy()
        held, other = giver.give.remote(COUNT), giver.give.remote(COUNT)
        taker.hold.remote(held)
        (pid,) = pair.memory_daemons()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(package.RefNotFoundError, match="lost when the memory daemon ended"):
            taker.total.remote(other)
        assert numpy.array_equal(taker.held.remote()[0], GIVEN)
        assert taker.total.remote(giver.give.remote(COUNT)) == TOTAL
        pair.end_daemon()
        # The next daemon, which a command starts, finds the instances, and they hand on as before.
        pair.deployer.come_to("hand-Taker", "running")
        giver, taker = pair.find("hand")
        assert numpy.array_equal(taker.held.remote()[0], GIVEN)
        assert taker.total.remote(giver.give.remote(COUNT)) == TOTAL


def test_arrays_that_nobody_uses_go_to_the_host_and_come_back():
    with pair_with(REKINDLE_EXCHANGE_GPU="4M", REKINDLE_EXCHANGE_HOST=str(2 * BYTES)) as pair:
        giver, taker = pair.deploy()
        refs = [giver.give.remote(COUNT) for _ in range(3)]
        assert pair.counts() == (3, 0, 2 * ROOM, BYTES)
        for ref in refs:
            assert taker.total.remote(ref) == TOTAL
        pair.come_to(3, 0, 2 * ROOM, BYTES)
        # Those that are held stay; what comes to the GPU besides is the taker's own.
        taker.hold.remote(*refs)
        assert pair.counts() == (3, 2, 2 * ROOM, BYTES)
        assert all(numpy.array_equal(array, GIVEN) for array in taker.held.remote())
        with pytest.raises(package.RefMemoryError, match=f"of which {2 * ROOM} are in use; drop some"):
            giver.give.remote(COUNT)
        taker.free.remote()
        refs.append(giver.give.remote(COUNT))
        with pytest.raises(package.RefMemoryError, match="larger --exchange-host"):
            giver.give.remote(COUNT)
        with pytest.raises(package.RefMemoryError, match="which is less; .* --exchange-gpu"):
            giver.give.remote(2 << 20)
        assert pair.counts() == (4, 0, 2 * ROOM, 2 * BYTES)
        for ref in refs:
            giver.drop.remote(ref)
        pair.come_to(0, 0, 0, 0)


def test_arrays_give_way_to_a_program_that_lacks_memory(pair):
    giver, taker = pair.find("hand")
    held, free = giver.give.remote(COUNT), giver.give.remote(COUNT)
    taker.hold.remote(held)
    assert "MEMORY" in giver.take_all_memory.remote()
    assert pair.counts() == (2, 1, ROOM, BYTES)
    assert taker.total.remote(free) == TOTAL
    taker.free.remote()
    for ref in (held, free):
        taker.drop.remote(ref)
    pair.come_to(0, 0, 0, 0)


def test_a_worker_that_is_killed_in_the_middle_leaves_nothing_half_done():
    with pair_with(REKINDLE_FAULT="exchange-move:kill", REKINDLE_EXCHANGE_GPU="4M") as pair:
        giver, taker = pair.deploy()
        refs = [giver.give.remote(COUNT) for _ in range(2)]
        with pytest.raises(package.Error):
            giver.give.remote(COUNT)
        pair.come_to(2, 0, 2 * ROOM, 0)
        assert [taker.total.remote(ref) for ref in refs] == [TOTAL, TOTAL]
        taker.drop.remote(refs[0])
        pair.end("hand-Giver")
        assert taker.total.remote(giver.give.remote(COUNT)) == TOTAL


def test_a_gpu_that_fails_is_told_of_and_nothing_is_kept():
    with pair_with(REKINDLE_FAULT="exchange-copy:fail") as pair:
        giver, _ = pair.deploy()
        with pytest.raises(package.RefGpuError, match="look at the log"):
            giver.give.remote(COUNT)
        pair.come_to(0, 0, 0, 0)


TWO = "emulated:0", "emulated:1"


@pytest.mark.parametrize("share", [False, None, "us"])
def test_an_array_of_another_gpu_is_copied_and_its_own_stays_as_it_was(share):
    owner = "share:us" if share else "app:hand"
    with pair_with() as pair:
        giver, taker = pair.deploy(share=share, gpus=TWO)
        refs = [giver.give.remote(count) for count in (COUNT, 3, ROOM // 4)]
        for ref, count in zip(refs, (COUNT, 3, ROOM // 4), strict=True):
            assert taker.total.remote(ref) == 4 * sum(range(count))
        taker.hold.remote(*refs)
        # What the taker has is its own, and nobody holds the arrays.
        assert pair.counts(owner) == (3, 0, 3 * ROOM, 0)
        back = taker.give.remote(COUNT)
        assert giver.total.remote(back) == TOTAL
        for ref in refs:
            giver.drop.remote(ref)
        pair.end("hand-Giver")
        assert numpy.array_equal(taker.held.remote()[0], GIVEN)
        taker.drop.remote(back)
        pair.rekindle.wait(lambda: pair.counts(owner) == (0, 0, 0, 0), "all to be dropped")


def test_an_array_of_another_gpu_is_in_an_image_as_the_takers_own():
    with pair_with() as pair:
        giver, taker = pair.deploy(gpus=TWO)
        taker.hold.remote(giver.give.remote(COUNT))
        for level in ("gpu", "host", "disk"):
            pair.rekindle("sleep", "hand-Taker-1", "--level", level)
            assert numpy.array_equal(taker.held.remote()[0], GIVEN)


def test_arrays_of_another_gpu_come_back_from_the_host():
    with pair_with(REKINDLE_EXCHANGE_GPU="4M", REKINDLE_EXCHANGE_HOST=str(2 * BYTES)) as pair:
        giver, taker = pair.deploy(gpus=TWO)
        refs = [giver.give.remote(COUNT) for _ in range(3)]
        assert pair.counts() == (3, 0, 2 * ROOM, BYTES)
        for ref in refs * 2:
            assert taker.total.remote(ref) == TOTAL


@pytest.mark.parametrize("share", [False, None])
def test_arrays_go_to_another_gpu_that_has_room_before_the_host(share):
    with pair_with(REKINDLE_EXCHANGE_GPU="4M", REKINDLE_EXCHANGE_HOST=str(BYTES)) as pair:
        giver, taker = pair.deploy(gpus=TWO, share=share)
        refs = [taker.give.remote(COUNT), *(giver.give.remote(COUNT) for _ in range(3))]
        assert pair.counts() == (4, 0, 4 * ROOM, 0) and pair.moves() == (1, 0)
        # It is had on both, and what is full is not moved to.
        for ref in refs * 2:
            assert giver.total.remote(ref) == taker.total.remote(ref) == TOTAL
        refs.append(giver.give.remote(COUNT))
        assert pair.counts() == (5, 0, 4 * ROOM, BYTES) and pair.moves() == (1, 1)
        pair.end("hand-Giver")
        assert [taker.total.remote(ref) for ref in refs] == [TOTAL] * 5
        for ref in refs:
            taker.drop.remote(ref)
        pair.come_to(0, 0, 0, 0)


def test_arrays_give_way_to_a_program_that_lacks_memory_by_going_to_another_gpu():
    with pair_with() as pair:
        giver, taker = pair.deploy(gpus=TWO)
        refs = [taker.give.remote(COUNT), giver.give.remote(COUNT)]
        assert "MEMORY" in giver.take_all_memory.remote()
        assert pair.counts() == (2, 0, 2 * ROOM, 0) and pair.moves() == (1, 0)
        assert [giver.total.remote(ref) for ref in refs] == [TOTAL] * 2


def test_an_array_that_cannot_go_to_another_gpu_goes_to_the_host():
    with pair_with(REKINDLE_FAULT="exchange-over", REKINDLE_EXCHANGE_GPU="4M") as pair:
        giver, taker = pair.deploy(gpus=TWO)
        refs = [taker.give.remote(COUNT), *(giver.give.remote(COUNT) for _ in range(3))]
        assert pair.counts() == (4, 0, 3 * ROOM, BYTES) and pair.moves() == (0, 1)
        assert [taker.total.remote(ref) for ref in refs] == [TOTAL] * 4


def test_a_worker_that_is_killed_on_the_way_to_another_gpu_leaves_nothing_half_done():
    with pair_with(REKINDLE_FAULT="exchange-over:kill", REKINDLE_EXCHANGE_GPU="4M") as pair:
        giver, taker = pair.deploy(gpus=TWO)
        refs = [taker.give.remote(COUNT), *(giver.give.remote(COUNT) for _ in range(2))]
        with pytest.raises(package.Error):
            giver.give.remote(COUNT)
        pair.come_to(3, 0, 3 * ROOM, 0)
        assert [taker.total.remote(ref) for ref in refs] == [TOTAL] * 3


BETWEEN = """
import sys
import numpy
import rekindle
from numba import cuda

numbers = numpy.arange(int(sys.argv[1]), dtype="int32")
with cuda.gpus[0]:
    here = cuda.to_device(numbers)
    ref = rekindle.put(here)
with cuda.gpus[1]:
    there = rekindle.get(ref)
    assert there.__dlpack_device__() == (2, 1), there.__dlpack_device__()
    assert numpy.array_equal(there.copy_to_host(), numbers)
    assert numpy.array_equal(cuda.as_cuda_array(there).copy_to_host(), numbers)
    back = rekindle.put(there)
with cuda.gpus[0]:
    assert numpy.array_equal(rekindle.get(back).copy_to_host(), numbers)
    # What lies on the other one is put from there.
    far = rekindle.put(there)
    assert numpy.array_equal(rekindle.get(far).copy_to_host(), numbers)
print("ok")
"""


def test_a_program_with_two_gpus_hands_arrays_on_between_them(rekindle):
    rekindle("run", "-d", "--name", "two", "--gpu", "emulated:devices=2", "--", sys.executable, "-c", BETWEEN, COUNT)
    assert rekindle.wait_end("two") == ["ok"]


def test_a_gpu_without_room_for_the_copy_of_an_array_says_so_and_keeps_nothing():
    with pair_with() as pair:
        giver, taker = pair.deploy(gpus=("emulated:0", "emulated:1,memory=64M"))
        small, large = giver.give.remote(COUNT), giver.give.remote(20 << 20)
        for _ in range(5):
            with pytest.raises(package.RefMemoryError, match="the GPU has no room"):
                taker.hold.remote(large)
        taker.hold.remote(*[small] * 10)
        assert all(numpy.array_equal(array, GIVEN) for array in taker.held.remote())
        # On its own GPU it is still to be had.
        assert giver.total.remote(large) == 4 * sum(range(20 << 20))
