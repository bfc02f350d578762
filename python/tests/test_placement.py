"""Functions with instances on several GPUs: a call goes to one where its arrays lie, and nothing is copied from GPU to GPU."""

import sys
import textwrap

import pytest
import rekindle as package
from conftest import APPS, Deployer, begun
from harness import CommandError

GPUS = ["emulated:0", "emulated:1"]
COUNT = 400_000
APP = f"import sys\nsys.path.insert(0, {str(APPS)!r})\n" + textwrap.dedent(
    """
    import numpy
    from scaling import scaled

    class Base:
        @rekindle.enter()
        def compile(self):
            scaled(numpy.zeros(4, "int32"), 1).copy_to_host()

    @app.cls(gpu={first!r}, max_containers=1, share={share!r})
    class First(Base):
        @rekindle.method()
        def make(self, count):
            return scaled(numpy.arange(count, dtype="int32"), 2)

        @rekindle.method()
        def put(self, count):
            return rekindle.put(self.make(count))

    @app.cls(gpu={second!r}, max_containers={most}, share={share!r}, sleep_window=0)
    class Second(Base):
        @rekindle.method()
        def triple(self, array):
            return scaled(array, 3)

        @rekindle.method()
        def sum_of(self, array):
            return int(array.copy_to_host().sum(dtype="int64"))

        @rekindle.method()
        def one(self):
            return 1

        @rekindle.method()
        def sum_of_ref(self, ref):
            return self.sum_of(rekindle.get(ref))

    chain = app.workflow("chain")
    chain.step(Second().sum_of, chain.step(Second().triple, chain.step(First().make)))
    """
)
TOTAL = 2 * sum(range(COUNT))


class Placed:
    """An app whose first function gives the second one arrays, and is on one GPU."""

    def __init__(self, rekindle):
        self.rekindle, self.deployer = rekindle, Deployer(rekindle)

    def deploy(self, *, first=GPUS[1], second=GPUS, most=2, share=False):
        return self.deployer.app("placed", APP.format(first=first, second=second, most=most, share=share))

    def copies(self):
        return self.rekindle.json("stats", "--no-stream")["handed_on_moves"]

    def gpus(self):
        """Where instances of the second are."""
        return sorted(one["gpu"] for one in self.deployer.service("placed-Second")["instances"])

    def second(self):
        return package.Cls.from_name("placed", "Second")()

    def end_second(self):
        for one in self.deployer.service("placed-Second")["instances"]:
            self.rekindle("kill", one["name"])
        self.deployer.come_to("placed-Second")


@pytest.fixture
def placed():
    with begun() as rekindle:
        yield Placed(rekindle)


@pytest.mark.parametrize("share", (False, None))
def test_a_chain_stays_on_the_gpu_where_its_arrays_are(placed, share):
    placed.deploy(share=share)
    chain = package.Function.from_name("placed", "chain")
    # The first instance is elsewhere: it copies, and one comes to where the arrays are.
    assert placed.gpus() == GPUS[:1]
    assert chain.remote(COUNT) == 3 * TOTAL
    assert placed.copies()["between_gpus"] > 0
    placed.rekindle.wait(lambda: placed.gpus() == GPUS, "an instance on each GPU")
    placed.deployer.come_to("placed-Second", "running", "running")
    before = placed.copies()
    for _ in range(3):
        assert chain.remote(COUNT) == 3 * TOTAL
    assert placed.copies() == before
    service = placed.deployer.service("placed-Second")
    assert [place["gpu"] for place in service["source"]["gpus"]] == GPUS


def test_an_instance_that_is_needed_is_started_where_the_arrays_are(placed):
    placed.deploy(most=1)
    placed.end_second()
    assert package.Function.from_name("placed", "chain").remote(COUNT) == 3 * TOTAL
    assert placed.gpus() == GPUS[1:]
    assert not any(placed.copies().values())


def test_calls_with_references_go_where_these_lie(placed):
    placed.deploy()
    first, second = package.Cls.from_name("placed", "First")(), placed.second()
    ref = first.put.remote(COUNT)
    assert second.sum_of_ref.remote(ref) == TOTAL
    placed.rekindle.wait(lambda: placed.gpus() == GPUS, "an instance on each GPU")
    placed.deployer.come_to("placed-Second", "running", "running")
    before = placed.copies()
    assert before["between_gpus"] == 1
    for _ in range(3):
        assert second.sum_of_ref.remote(ref) == TOTAL
    assert placed.copies() == before


def test_none_is_started_for_arrays_where_that_needs_memory_that_others_have(placed):
    with begun(REKINDLE_SERVICE_MEMORY="64M") as rekindle:
        own = Placed(rekindle)
        own.deploy(first=GPUS[1], second=GPUS, most=2)
        need = own.deployer.service("placed-First")["source"]["need"]["program"]
        assert 0 < need < 64 << 20
    with begun(REKINDLE_SERVICE_MEMORY=str(int(1.5 * need))) as rekindle:
        own = Placed(rekindle)
        own.deploy(first=GPUS[1], second=GPUS, most=2)
        assert package.Function.from_name("placed", "chain").remote(COUNT) == 3 * TOTAL
        assert own.gpus() == GPUS[:1]


FILLING = """
@app.cls(gpu={gpu!r}, min_containers={least}, max_containers=1, share=False, scaledown_window=1, sleep_window=0)
class {name}(Base):
    @rekindle.method()
    def one(self):
        return 1
"""


def filled(source, **filling):
    """The app with classes that stay awake on a GPU, or do not."""
    return source + "".join(textwrap.dedent(FILLING.format(name=name, gpu=gpu, least=least)) for name, (gpu, least) in filling.items())


def need_of_one():
    with begun(REKINDLE_SERVICE_MEMORY="64M") as rekindle:
        own = Placed(rekindle)
        own.deploy()
        return own.deployer.service("placed-First")["source"]["need"]["program"]


def test_without_arrays_an_instance_is_started_where_there_is_room():
    limit = str(int(1.5 * need_of_one()))
    with begun(REKINDLE_SERVICE_MEMORY=limit) as rekindle:
        own = Placed(rekindle)
        own.deployer.app("placed", filled(APP.format(first=GPUS[1], second=GPUS, most=1, share=False), Full=(GPUS[0], 1)))
        own.deployer.come_to("placed-Full", "running")
        own.end_second()
        assert own.second().one.remote() == 1
        assert own.gpus() == GPUS[1:], "the first has no room"


def test_an_instance_that_waits_goes_where_room_comes():
    limit = str(int(1.5 * need_of_one()))
    with begun(REKINDLE_SERVICE_MEMORY=limit) as rekindle:
        own = Placed(rekindle)
        source = filled(APP.format(first=GPUS[1], second=GPUS, most=1, share=False), Full=(GPUS[0], 1), Other=(GPUS[1], 1))
        own.deployer.app("placed", source)
        own.deployer.come_to("placed-Full", "running")
        own.deployer.come_to("placed-Other", "running")
        call = own.second().one.spawn()
        rekindle.wait(lambda: own.deployer.service("placed-Second")["instances"], "the instance")
        waits = own.deployer.service("placed-Second")["instances"][0]
        assert waits["stage"] == "waiting" and not call.done()
        # Room comes on the other GPU.
        other = {GPUS[0]: "placed-Other", GPUS[1]: "placed-Full"}[waits["gpu"]]
        rekindle("scale", other, "--min", 0)
        assert call.get(timeout=60) == 1
        assert own.gpus() == [gpu for gpu in GPUS if gpu != waits["gpu"]]


def test_the_next_daemon_knows_where_instances_are(placed):
    placed.deploy()
    package.Function.from_name("placed", "chain").remote(COUNT)
    placed.rekindle.wait(lambda: placed.gpus() == GPUS, "an instance on each GPU")
    placed.deployer.come_to("placed-Second", "running", "running")
    placed.rekindle("shutdown")
    assert placed.gpus() == GPUS
    placed.deployer.come_to("placed-Second", "running", "running")


def test_what_cannot_be_is_refused(placed):
    placed.deploy()
    image = placed.deployer.service("placed-Second")["source"]["image"]
    twice = [word for gpu in (GPUS[0], GPUS[0]) for word in ("--gpu", gpu)]
    with pytest.raises(CommandError, match="twice"):
        placed.rekindle("serve", image, "--name", "placed-Second", *twice)
    assert placed.gpus() == GPUS[:1]
    # One alone: all instances are there, and nothing is chosen.
    placed.rekindle("serve", image, "--name", "placed-Second", "--gpu", GPUS[1])
    row = placed.deployer.service("placed-Second")
    assert "gpus" not in row["source"] and row["source"]["gpu"] == GPUS[1]
    file = placed.deployer.write("wrong", '@app.function(gpu=["emulated", 3])\ndef f():\n    pass\n')
    with pytest.raises(CommandError, match="several of them"):
        placed.rekindle("deploy", file, "--python", sys.executable)
