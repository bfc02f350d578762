"""Instances of functions: from the image alone, for as long as they are declared, and away again."""

import contextlib
import socket
import threading

import pytest
import rekindle as package
from conftest import APPS
from harness import CommandError
from rekindle.connections import readable

HOLD = """
@rekindle.method()
def hold(self, name):
    Path(f"{name}.held").touch()
    while not os.path.exists(f"{name}.go"):
        time.sleep(0.01)
    return name
"""


def remote_cls(app, name):
    return package.Cls.from_name(app, name)()


def remote_function(app, name):
    return package.Function.from_name(app, name)


def is_closed(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionError:
        return True
    return False


def indented(source):
    return source.replace("\n", "\n    ")


def test_a_call_restores_an_instance_from_the_image_alone(rekindle, deploy):
    deploy.app(
        "away",
        """
@app.cls(gpu="emulated", scaledown_window=0, sleep_window=0)
class Model:
    @rekindle.enter()
    def load(self):
        self.steps = ["image"]

    @rekindle.enter(restored=True)
    def restored(self):
        self.steps.append("instance")

    @rekindle.method()
    def work(self):
        self.steps.append("call")
        return self.steps

    @rekindle.exit()
    def leave(self):
        print("left after", self.steps, flush=True)
""",
    )
    model = remote_cls("away", "Model")
    for _ in range(2):
        deploy.come_to("away-Model")
        # What an instance does leaves no trace in the next one.
        assert model.work.remote() == ["image", "instance", "call"]
    deploy.come_to("away-Model")
    ended = [row["name"] for row in rekindle.sandboxes() if row["name"].startswith("away-Model-")]
    logs = [rekindle("logs", name) for name in ended]
    assert any("left after ['image', 'instance', 'call']" in log for log in logs), logs
    assert {row["exit_code"] for row in rekindle.sandboxes() if row["name"] in ended} == {0}


def test_an_instance_that_sleeps_goes_on_with_a_call(calls):
    counter = package.Cls.from_name("calls", "Counter")()
    before, who = counter.count.remote(), counter.who.remote()
    calls.rekindle("sleep", "calls-Counter-1")
    assert counter.who.remote() == who
    assert counter.count.remote() == before + 1
    assert counter.who.remote() == who


def test_a_call_that_takes_too_long_is_given_up_and_its_instance_goes_on(rekindle, deploy):
    deploy.app(
        "late",
        f"""
import asyncio

@app.cls(gpu="emulated", timeout=0.3, max_containers=1)
class Model:
    {indented(HOLD)}

    @rekindle.method()
    async def wait(self):
        await asyncio.sleep(1000)

    @rekindle.method()
    def raises(self):
        raise TimeoutError("mine")

    @rekindle.method()
    def pid(self):
        return os.getpid()
""",
    )
    model = remote_cls("late", "Model")

    def answer():
        """What it answers in time, which any call may miss on a busy machine."""
        while True:
            with contextlib.suppress(package.FunctionTimeoutError):
                return model.pid.remote()

    pid = answer()
    for call in (lambda: model.hold.remote(deploy.mark("a")), model.wait.remote):
        with pytest.raises(package.FunctionTimeoutError, match=r"late-Model took longer than 0\.3 s.*timeout"):
            call()
        assert answer() == pid
    with pytest.raises(TimeoutError, match="mine") as raised:
        with contextlib.suppress(package.FunctionTimeoutError):
            model.raises.remote()
        model.raises.remote()
    assert type(raised.value) is TimeoutError


def test_a_call_is_made_again_as_often_as_is_declared(rekindle, deploy):
    deploy.app(
        "again",
        """
def fails(name, failures):
    file = Path(name)
    count = int(file.read_text()) if file.exists() else 0
    file.write_text(str(count + 1))
    if count < failures:
        raise ConnectionError(f"failure {count + 1}")
    return count

@app.function(gpu="emulated", retries=rekindle.Retries(2, initial_delay=0.01))
def declared(name, failures):
    return fails(name, failures)

@app.function(gpu="emulated")
def once(name, failures):
    return fails(name, failures)

@app.function(gpu="emulated", retries=1)
def dies(name):
    if not os.path.exists(name):
        Path(name).touch()
        os._exit(3)
    return "alive"

@app.function(gpu="emulated")
def ends():
    os._exit(3)
""",
    )
    function = lambda name: remote_function("again", name)
    assert function("declared").remote(deploy.mark("a"), 2) == 2
    with pytest.raises(ConnectionError, match="failure 3"):
        function("declared").remote(deploy.mark("b"), 3)
    with pytest.raises(ConnectionError, match="failure 1"):
        function("once").remote(deploy.mark("c"), 1)
    assert function("dies").remote(deploy.mark("d")) == "alive"
    with pytest.raises(package.InstanceLostError, match=r"again-ends\.ends.*again-ends-1"):
        function("ends").remote()


def test_who_is_refused_is_told_so(rekindle, deploy):
    deploy.app(
        "full",
        f"""
@app.cls(gpu="emulated", max_containers=1, max_queue=1)
class Model:
    {indented(HOLD)}
""",
    )
    hold = remote_cls("full", "Model").hold
    calls = [hold.spawn(deploy.mark("a"))]
    deploy.held("a")
    calls.append(hold.spawn(deploy.mark("b")))
    rekindle.wait(lambda: deploy.service("full-Model")["queued"] == 1, "a call that waits")
    with pytest.raises(package.QueueFullError, match="full-Model.hold.*as many requests wait") as raised:
        hold.remote(deploy.mark("c"))
    assert raised.value.retry_after == 1
    with pytest.raises(package.QueueFullError):
        hold.remote(deploy.mark("c"), bytes(50_000_000))
    # A map waits for places.
    taken = []
    waits = threading.Thread(target=lambda: taken.extend(hold.map([deploy.mark("d")])))
    refused = deploy.service("full-Model")["refused"]
    waits.start()
    rekindle.wait(lambda: deploy.service("full-Model")["refused"] > refused, "the map to be refused")
    for name in "abd":
        deploy.let_go(name)
    waits.join()
    assert [call.get() for call in calls] == [deploy.mark("a"), deploy.mark("b")] and taken == [deploy.mark("d")]
    rekindle("drain", "full-Model")
    with pytest.raises(package.UnavailableError, match="takes no more requests"):
        hold.remote(deploy.mark("e"))


def test_calls_come_together_in_batches(rekindle, deploy):
    deploy.app(
        "batches",
        """
@app.cls(gpu="emulated", max_containers=1)
class Model:
    @rekindle.batched(max_batch_size=4, wait_ms=60_000)
    def whole(self, number, factor=1):
        return [(one * by, len(number)) for one, by in zip(number, factor)]

    @rekindle.batched(max_batch_size=4, wait_ms=1)
    async def part(self, number):
        return [one + 1 for one in number]

    @rekindle.batched(max_batch_size=1, wait_ms=0)
    def wrong(self, number):
        return 5
""",
    )
    model = remote_cls("batches", "Model")
    assert deploy.service("batches-Model")["plan"]["concurrency"] == 4
    calls = [model.whole.spawn(number, factor=10) for number in range(3)] + [model.whole.spawn(3)]
    assert [call.get() for call in calls] == [(0, 4), (10, 4), (20, 4), (3, 4)]
    assert model.part.remote(1) == 2
    with pytest.raises(TypeError, match="wrong returned int for a batch of 1"):
        model.wrong.remote(1)
    with pytest.raises(TypeError, match="missing a required argument"):
        model.part.remote()


def test_a_service_is_found_again_where_it_is_now(rekindle, deploy):
    deploy.app("moves", "@app.function(gpu='emulated')\ndef one():\n    return 1\n")
    one = remote_function("moves", "one")
    assert one.remote() == 1

    def left(port):
        """Until a call there would be refused, and not lost on its way."""
        ended = lambda: all(readable(connection) for _, connection in one.client.connections.idle)
        rekindle.wait(lambda: is_closed(port) and ended(), "the port and connections to be closed")

    image = deploy.service("moves-one")["source"]["image"]
    port = deploy.service("moves-one")["port"]
    rekindle("serve", image, "--name", "moves-one", "--port", "127.0.0.1:0")
    left(port)
    assert one.remote() == 1
    # The next daemon has the service, and the connections that there were are gone.
    port = deploy.service("moves-one")["port"]
    rekindle("shutdown")
    left(port)
    assert one.remote() == 1
    rekindle("unserve", "moves-one")
    left(port)
    with pytest.raises(package.NotFoundError, match="'one' of the app 'moves'"):
        one.remote()


def test_an_exit_that_fails_is_shown(rekindle, deploy):
    deploy.app(
        "leaving",
        """
@app.cls(gpu="emulated")
class Model:
    @rekindle.method()
    def work(self):
        pass

    @rekindle.exit()
    def leave(self):
        raise OSError("no disk")
""",
    )
    rekindle("unserve", "leaving-Model")
    lines = rekindle.lines("leaving-Model-1")
    assert "@rekindle.exit() failed" in lines[0] and lines[-1] == "OSError: no disk"
    assert rekindle.sandbox("leaving-Model-1")["exit_code"] == 1


COUNTER = (APPS / "calls.py").read_text()


def counters(deploy, app, *options):
    """An app of counters, one with each of these options."""
    head, _, body = COUNTER.partition('@app.cls(gpu="emulated", share=False, concurrency=8, max_containers=1)\nclass Counter:')
    head, body = head.partition("@app.function")[0], body.partition("\n\n\nif __name__")[0]
    classes = [
        f'@app.cls(gpu="emulated", concurrency=8, max_containers=1{some})\nclass Counter{number}:{body}' for number, some in enumerate(options)
    ]
    file = deploy.directory / f"{app}.py"
    file.write_text("\n\n\n".join([head.replace('rekindle.App("calls")', f"rekindle.App({app!r})"), *classes]))
    deploy(file)
    return [remote_cls(app, f"Counter{number}") for number in range(len(options))]


def contexts(rekindle):
    """The process that has the GPU context of each instance, by the instance's name, and by which name it shares that."""
    rows = [row for row in rekindle.sandboxes() if row["pid"] and "-Counter" in row["name"]]
    return {row["name"]: (*row["workers"], row.get("tenant")) for row in rows}


def test_functions_of_a_tenant_share_a_gpu_context(rekindle, deploy):
    (red,), (blue,) = (counters(deploy, name, ", share='us'") for name in ("red", "blue"))
    for counter in (red, blue, red):
        assert counter.count.remote() > 10
    found = contexts(rekindle).values()
    assert len(found) == 2 and len(set(found)) == 1 and {name for _, name in found} == {"us"}


def test_functions_of_an_app_share_a_gpu_context_with_nobody_else(rekindle, deploy):
    red = counters(deploy, "red", "", ", link_weight=20, sm_share=25", ", share=False", ", sleep_window=600")
    (blue,) = counters(deploy, "blue", "")
    for counter in (*red, blue, *red):
        assert counter.count.remote() > 10
    found = contexts(rekindle)
    shared, other = found["red-Counter0-1"], found["blue-Counter0-1"]
    assert found["red-Counter1-1"] == shared and shared[1] == "app:red"
    assert other[1] == "app:blue" and other[0] != shared[0]
    own = [found[f"red-Counter{number}-1"] for number in (2, 3)]
    assert [name for _, name in own] == [None, None] and len({worker for worker, _ in (shared, other, *own)}) == 4
    # Those with a context of their own sleep, and go on with what they had.
    before = red[2].count.remote()
    rekindle("sleep", "red-Counter2-1")
    assert red[2].count.remote() == before + 1
    with pytest.raises(CommandError, match="cannot be put to sleep"):
        rekindle("sleep", "red-Counter0-1")


def test_a_fault_of_one_function_leaves_the_others_of_its_app_served(rekindle, deploy):
    one, faulty = counters(deploy, "red", "", "")
    before = one.count.remote()
    assert faulty.count.remote() > 10
    held = contexts(rekindle)
    assert held["red-Counter0-1"] == held["red-Counter1-1"]
    with pytest.raises(RuntimeError, match="700"):
        faulty.fault.remote()
    # It goes on with its number, as the same instance, in another context.
    assert [one.count.remote() for _ in range(3)] == [before + 1, before + 2, before + 3]
    after = contexts(rekindle)
    assert after["red-Counter0-1"] != held["red-Counter0-1"]
    # Another instance has the place of the one that failed, and its name if that was free by then.
    is_there = lambda: contexts(rekindle).get("red-Counter1-1") == held["red-Counter1-1"]
    rekindle.wait(lambda: not is_there(), "the end of the instance that failed")
    assert faulty.count.remote() > 10 and one.count.remote() == before + 4


def test_a_function_that_shares_ends_when_it_is_idle(rekindle, deploy):
    (counter,) = counters(deploy, "red", ", scaledown_window=0.2")
    assert counter.count.remote() > 10
    deploy.come_to("red-Counter0")
    assert counter.count.remote() > 10


def test_a_function_is_deployed_with_a_context_of_its_own_and_with_a_shared_one_again(rekindle, deploy):
    for options, name, portion in (
        (", share=False", None, (None, None, None, None)),
        (", link_weight=30, sm_share=25, sm_weight=20, sm_most=50", "app:red", (30, 25, 20, 50)),
        ("", "app:red", (10, None, None, None)),
        (", share=False", None, (None, None, None, None)),
    ):
        (counter,) = counters(deploy, "red", options)
        assert counter.count.remote() > 10
        newest = lambda: [row for row in rekindle.sandboxes() if row["pid"] and row["image"] == deploy.service("red-Counter0")["source"]["image"]]
        (row,) = newest()
        assert row.get("tenant") == name
        (stats,) = rekindle.json("stats", "--no-stream", row["name"])["sandboxes"]
        assert tuple(stats[part] for part in ("link_weight", "sm_share", "sm_weight", "sm_most")) == portion


def test_instances_of_variants_fit_in_one_gpu_context(rekindle, deploy):
    options = "variants=2, concurrency=1, max_containers=3"
    source = COUNTER.replace("share=False, concurrency=8, max_containers=1", options)
    # Three at once are three instances.
    source = source.replace("class Counter:", "class Counter:" + indented(HOLD))
    file = deploy.directory / "many.py"
    file.write_text(source.replace('rekindle.App("calls")', 'rekindle.App("many")'))
    (service,) = (row for row in deploy(file)["services"] if row["name"] == "Counter")
    first, second = service["image"], *service["variants"]
    assert {row["name"] for row in rekindle.json("images")["images"] if row["name"].startswith("many-Counter@")} == {first, second}
    counter = remote_cls("many", "Counter")
    held = [counter.hold.spawn(f"{rekindle.root}/{number}") for number in range(3)]
    rekindle.wait(lambda: len(list(rekindle.root.glob("*.held"))) == 3, "three instances")
    rows = [row for row in rekindle.sandboxes() if row["pid"] and "-Counter-" in row["name"]]
    contexts = {image: [worker for row in rows if row["image"] == image for worker in row["workers"]] for image in (first, second)}
    assert sorted(map(len, contexts.values())) == [1, 2]
    # The third is of an image that the context has an instance of.
    assert len({*contexts[first], *contexts[second]}) == 2
    for number in range(3):
        (rekindle.root / f"{number}.go").touch()
    assert [call.get() for call in held] == [f"{rekindle.root}/{number}" for number in range(3)]
    assert counter.count.remote() > 10


def test_a_function_goes_down_by_its_stages_and_goes_on_with_what_it_had(rekindle, deploy):
    (counter,) = counters(deploy, "red", ", scaledown_window=0.1, sleep_stages={'gpu': 0.2, 'host': 3600}")
    before = counter.count.remote()
    sleeps = lambda: [(one["stage"], one["level"]) for one in deploy.service("red-Counter0")["instances"]]
    rekindle.wait(lambda: sleeps() == [("asleep", "host")], "an instance that has gone down to memory of the host")
    assert counter.count.remote() == before + 1
    assert deploy.service("red-Counter0")["plan"]["stages"] == [{"level": "gpu", "ms": 200}, {"level": "host", "ms": 3_600_000}]
