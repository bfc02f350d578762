"""Workflows that are deployed: one request to the node, which follows the graph."""

import asyncio
import http.client
import json
import sys
import time
import urllib.request

import numpy
import pytest
import rekindle as package
from collector import collecting
from conftest import APPS, Deployer, begun
from harness import CommandError
from rekindle.client import step_note
from rekindle.codec import CONTENT_TYPE, decode, encode

APP = (
    f"import sys\nsys.path.insert(0, {str(APPS)!r})\n"
    + """
import numpy
from numba import cuda
from scaling import scaled

def held(mark):
    Path(mark + ".held").touch()
    while not os.path.exists(mark + ".go"):
        time.sleep(0.01)

class Odd(Exception):
    pass

@app.cls(gpu="emulated", concurrency=4, max_containers=1)
class Maker:
    @rekindle.enter()
    def compile(self):
        scaled(numpy.zeros(4, "int32"), 1).copy_to_host()

    @rekindle.method()
    def make(self, count, start=0):
        return {"numbers": cuda.to_device(numpy.arange(start, start + count, dtype="int32")), "count": count}

    @rekindle.method()
    def double(self, made):
        return scaled(made["numbers"], 2)

    @rekindle.method()
    def double_inside(self, doubled):
        return scaled(doubled, 2)

    @rekindle.method()
    def make_of(self, count, mark):
        return self.make(count)

    @rekindle.method()
    def parts(self, count, sizes):
        return [cuda.to_device(numpy.full(size, number, "int32")) for number, size in zip(range(count), sizes)]

@app.cls(gpu="emulated", concurrency=4, max_containers=1)
class Other:
    @rekindle.enter()
    def compile(self):
        scaled(numpy.zeros(4, "int32"), 1).copy_to_host()

    @rekindle.method()
    def triple(self, made):
        return scaled(made["numbers"], 3)

    @rekindle.method()
    def refuse(self, made):
        raise Odd(f"{made['count']} numbers are not wanted")

    @rekindle.method()
    def join(self, doubled, tripled):
        kinds = [type(one).__name__ for one in (doubled, tripled)]
        host = [one.copy_to_host() if hasattr(one, "copy_to_host") else one for one in (doubled, tripled)]
        return kinds, host[0] + host[1]

    @rekindle.method()
    def kind_and_sum(self, part):
        host = part.copy_to_host() if hasattr(part, "copy_to_host") else part
        return type(part).__name__, int(host.sum())

@app.cls(concurrency=16, max_containers=1)
class Plain:
    @rekindle.method()
    def increase(self, number, by=1):
        return number + by

    @rekindle.method()
    def fail_on(self, number, at=3):
        if number == at:
            raise Odd(f"{number} is not wanted")
        return number

    @rekindle.method()
    def wait_for(self, mark):
        held(mark)
        return mark

    @rekindle.method()
    def held_of(self, count, mark):
        held(mark)
        return mark

    @rekindle.method()
    def listed(self, count):
        return list(range(count))

    @rekindle.method()
    def mark_of(self, count, mark):
        return mark

    @rekindle.method()
    def few(self, count):
        return [0] * (count - 1)

    @rekindle.method()
    def pair(self, one, other):
        return one, other

@app.function(max_containers=1, retries=rekindle.Retries(2, initial_delay=0.05))
def again(mark):
    count = len(list(Path(mark).parent.glob(Path(mark).name + ".try*")))
    Path(f"{mark}.try{count}").touch()
    if count < 2:
        raise ValueError(f"try {count}")
    return count

@app.function(max_containers=1)
def end_here(mark):
    if not os.path.exists(mark + ".ended"):
        Path(mark + ".ended").touch()
        os._exit(3)
    return "alive"

@app.cls(gpu="emulated", max_containers=1)
class Caller:
    @rekindle.enter()
    def compile(self):
        scaled(numpy.zeros(4, "int32"), 1).copy_to_host()

    @rekindle.method()
    def call(self, count):
        # It gives the workflow an array of its own, and has one of its.
        own = scaled(numpy.arange(count, dtype="int32"), 1)
        found = inside.remote({"numbers": own})
        return type(found).__name__, int(found.copy_to_host().sum(dtype="int64"))

@app.cls(gpu="emulated", max_containers=2, retries=1)
class Careless:
    @rekindle.enter()
    def compile(self):
        scaled(numpy.zeros(4, "int32"), 1).copy_to_host()

    @rekindle.method()
    def quadruple(self, made, mark):
        if not os.path.exists(mark + ".ended"):
            Path(mark + ".ended").touch()
            os._exit(3)
        return scaled(made["numbers"], 4)

plain = Plain()

chain = app.workflow("chain")
chain.step(plain.increase, chain.step(plain.increase, name="first"), name="second")

inside = app.workflow("inside")
inside.step(Maker().double_inside, inside.step(Maker().double))

killed = app.workflow("killed", expiry=5)
killed.step(Careless().quadruple, killed.step(Maker().make_of), killed.step(plain.mark_of))

arrays = app.workflow("arrays")
made = arrays.step(Maker().make)
arrays.step(Other().join, arrays.step(Maker().double, made), arrays.step(Other().triple, made))

refused = app.workflow("refused", expiry=1000)
refused.step(Other().refuse, refused.step(Maker().make))

too_late = app.workflow("too_late", timeout=1, expiry=1000)
too_late.step(plain.pair, too_late.step(Maker().make_of), too_late.step(plain.held_of))

each = app.workflow("each")
numbers = each.step(plain.listed)
each.step(plain.pair, each.each(plain.increase, numbers), each.each(plain.pair, numbers, numbers))

spread = app.workflow("spread")
spread.each(Other().kind_and_sum, spread.step(Maker().parts))

wrong = app.workflow("wrong")
wrong.step(plain.increase, wrong.each(plain.fail_on, wrong.step(plain.listed), name="the wrong one"))

waits = app.workflow("waits", timeout=1)
first = waits.step(plain.wait_for)
waits.step(plain.pair, first, first)

patient = app.workflow("patient", concurrency=1)
patient.step(again, patient.step(plain.wait_for))

tried = app.workflow("tried")
tried.step(plain.increase, tried.step(again))

uneven = app.workflow("uneven")
uneven.each(plain.pair, uneven.step(plain.listed), uneven.each(plain.increase, uneven.step(plain.few)))

single = app.workflow("single")
single.each(plain.increase, single.step(plain.increase))

lost = app.workflow("lost")
ended = lost.step(end_here)
lost.step(plain.pair, ended, ended)
"""
)
# Of 4 bytes each: more than what goes by value, and less.
MANY, FEW = 400_000, 1000


@pytest.fixture(scope="module")
def deployer():
    with begun() as instance:
        one = Deployer(instance)
        one.deployed = one.app("flow", APP)
        yield one


def flow(name, **options):
    return package.Function.from_name("flow", name, **options)


def row_of(deployer, name):
    return next(row for row in deployer.rekindle.json("services")["workflows"] if row["name"] == f"flow-{name}")


def none_left(deployer):
    deployer.rekindle.wait(lambda: not [row for row in deployer.rekindle.json("ps")["handed_on"] if row["arrays"]], "all arrays to be used up")


def post(port, path, body=(), **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, b"".join(body), {"Content-Type": CONTENT_TYPE, **headers})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_a_chain_is_one_request_with_one_answer(deployer):
    assert [row["service"] for row in deployer.deployed["workflows"]][0] == "flow-chain"
    assert flow("chain").remote(5) == 7
    assert flow("chain").remote(5, by=10) == 16
    port = row_of(deployer, "chain")["port"]
    answer, content = post(port, "/-/call/chain", encode([[40], {}]))
    assert (answer.status, answer.headers["X-Rekindle"], decode(content)) == (200, "result", 42)
    answer, content = post(port, "/-/call/other", encode([[40], {}]))
    assert answer.status == 404 and b"POST /-/call/chain" in content
    for body, words in (([b"nonsense"], b"no whole message"), (encode([[1]]), b"arguments and keywords"), (encode(3), b"a list")):
        answer, content = post(port, "/-/call/chain", body)
        assert (answer.status, answer.headers["X-Rekindle"]) == (400, "misunderstood") and words in content
    assert list(flow("chain").map(range(5))) == [2, 3, 4, 5, 6]
    assert asyncio.run(flow("chain").remote.aio(1)) == 3
    shown = row_of(deployer, "chain")
    assert (len(shown["steps"]), shown["in_flight"], shown["problem"], shown["failed"]) == (2, 0, None, 3)
    assert shown["served"] == 9


def test_arrays_of_a_request_that_fails_are_dropped_with_it(deployer):
    with pytest.raises(Exception, match="not wanted"):
        flow("refused").remote(MANY)
    none_left(deployer)
    with pytest.raises(package.FunctionTimeoutError, match="longer than 1000 ms"):
        flow("too_late").remote(MANY, deployer.mark("too_late"))
    deployer.let_go("too_late")
    none_left(deployer)


def test_arrays_stay_on_the_gpu_between_steps(deployer):
    for count, kinds in ((MANY, ["DeviceArray"] * 2), (FEW, ["ndarray"] * 2)):
        found, total = flow("arrays").remote(count, start=7)
        assert found == kinds
        assert numpy.array_equal(total, 5 * numpy.arange(7, 7 + count, dtype="int32"))
    none_left(deployer)


def test_a_function_gives_a_workflow_arrays_and_has_its_result_on_the_gpu(deployer):
    call = package.Cls.from_name("flow", "Caller")().call
    for count in (MANY, FEW):
        assert call.remote(count) == ("DeviceArray", 4 * sum(range(count)))
    none_left(deployer)


def test_a_step_whose_instance_is_killed_has_its_arrays_again(deployer):
    mark = deployer.mark("killed")
    assert numpy.array_equal(flow("killed").remote(MANY, mark), 4 * numpy.arange(MANY, dtype="int32"))
    none_left(deployer)


def test_a_step_is_called_for_each_element_and_the_results_come_together(deployer):
    assert flow("each").remote(40) == (list(range(1, 41)), [(one, one) for one in range(40)])
    assert flow("each").remote(0) == ([], [])
    sizes = [MANY, FEW, MANY]
    assert flow("spread").remote(3, sizes) == [("DeviceArray", 0), ("ndarray", FEW), ("DeviceArray", 2 * MANY)]
    none_left(deployer)
    with pytest.raises(package.SerializationError, match="has something else where a list is to be; return a list or a tuple there"):
        flow("single").remote(1)
    with pytest.raises(package.SerializationError, match=r"they have \[3, 2\]; return lists of one length"):
        flow("uneven").remote(3)


def test_the_exception_of_a_step_is_the_workflows_and_names_the_step(deployer):
    with pytest.raises(package.RemoteError, match="Odd: 3 is not wanted") as raised:
        flow("wrong").remote(5)
    notes = "\n".join(raised.value.__notes__)
    assert step_note("the wrong one") in notes and "in fail_on" in notes
    assert row_of(deployer, "wrong")["failed"] >= 1
    # Without that element all of it works, and what comes after is called.
    with pytest.raises(TypeError):
        flow("wrong").remote(3)
    # An instance that ends is the step's failure, and the next request has another one.
    mark = deployer.mark("lost")
    with pytest.raises(package.InstanceLostError, match='in the step "end_here" of the workflow "flow-lost"'):
        flow("lost").remote(mark)
    assert flow("lost").remote(mark) == ("alive", "alive")


def test_each_step_is_made_again_as_it_is_declared(deployer):
    assert flow("tried").remote(deployer.mark("tried")) == 3


def test_a_workflow_that_is_too_late_ends(deployer):
    mark = deployer.mark("late")
    with pytest.raises(package.FunctionTimeoutError, match="took longer than 1000 ms"):
        flow("waits").remote(mark)
    deployer.let_go("late")
    # Its call is over, and nothing holds the instance.
    deployer.let_go("early")
    assert flow("waits").remote(deployer.mark("early")) == (deployer.mark("early"),) * 2


def test_who_goes_away_ends_what_has_not_begun_and_further_ones_are_refused(deployer):
    before = calls_of(deployer, "again")
    port, mark = row_of(deployer, "patient")["port"], deployer.mark("gone")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/-/call/patient", b"".join(encode([[mark], {}])), {"Content-Type": CONTENT_TYPE})
    deployer.held("gone")
    with pytest.raises(package.QueueFullError, match="as many requests, 1, are under way"):
        flow("patient").remote(mark)
    assert row_of(deployer, "patient")["in_flight"] == 1
    connection.close()
    deployer.rekindle.wait(lambda: row_of(deployer, "patient")["in_flight"] == 0, "the workflow to end")
    deployer.let_go("gone")
    time.sleep(0.3)
    assert calls_of(deployer, "again") == before


def calls_of(deployer, name):
    return deployer.service(f"flow-{name}")["served"]


SMALL = """
@app.function(max_containers=1, scaledown_window=0)
def one(number):
    return number + 1

@app.function(max_containers=1, scaledown_window=0)
def two(number):
    return number * 2

flow = app.workflow("both", concurrency=7)
flow.step(two, flow.step(one))
"""


def test_a_workflow_outlives_the_daemon_and_goes_with_its_app(tmp_path):
    log = tmp_path / "access.log"
    with (
        collecting() as (collector, endpoint),
        begun(REKINDLE_ACCESS_LOG=str(log), OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, REKINDLE_PAGE_PORT="127.0.0.1:0") as rekindle,
    ):
        deploy = Deployer(rekindle)
        port = deploy.app("small", SMALL)["workflows"][0]["port"]
        both = package.Function.from_name("small", "both")
        assert both.remote(1) == 4
        # All of it is one trace: the steps' requests are parts of the workflow's.
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        answer, content = post(port, "/-/call/both", encode([[2], {}]), traceparent=f"00-{trace}-00f067aa0ba902b7-01")
        assert decode(content) == 6
        rekindle.wait(lambda: len([one for one in collector.spans if one.trace == trace and one.kind == "server"]) == 3, "the spans")
        (whole,) = [one for one in collector.spans if one.trace == trace and one.name == "POST small-both"]
        assert (whole.trace, whole.parent) == (trace, "00f067aa0ba902b7")
        steps = {one.name: one for one in collector.below(whole)}
        assert set(steps) == {"POST small-one", "POST small-two"} and steps["POST small-one"].end <= steps["POST small-two"].begin
        assert whole.begin <= steps["POST small-one"].begin and steps["POST small-two"].end <= whole.end
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert len({line["request_id"] for line in lines if line["service"].startswith("small-") and line["path"].startswith("/-/call")}) == 2
        assert rekindle("services").count("small-both") == 1
        page = rekindle.json("page")["address"].split("#")[0].rstrip("/")
        told = urllib.request.urlopen(f"{page}/metrics").read().decode()
        assert 'rekindle_service_requests_total{service="small-both",tenant="",status="2xx"} 2' in told
        assert 'rekindle_workflow_limit{service="small-both",tenant=""} 7' in told
        # The next daemon has it, at the same port.
        rekindle("shutdown")
        assert [row["port"] for row in rekindle.json("services")["workflows"]] == [port]
        assert both.remote(3) == 8
        # A step whose service is gone is named.
        rekindle("unserve", "small-two")
        words = 'no service "small-two" any more, which the step "two" calls; deploy its app again'
        with pytest.raises(package.UnavailableError, match=words):
            both.remote(1)
        assert words in rekindle.json("services")["workflows"][0]["problem"]
        # It comes back with the app, and goes when it is no part of that any more.
        assert deploy.app("small", SMALL.replace("* 2", "* 3"))["removed"] == []
        assert both.remote(1) == 6
        assert deploy.app("small", SMALL.split("flow =")[0])["removed"] == ["small-both"]
        with pytest.raises(package.NotFoundError, match="nothing is deployed as 'both'"):
            package.Function.from_name("small", "both").remote(1)


def test_what_cannot_be_deployed_is_said_and_changes_nothing(tmp_path):
    with begun() as rekindle:
        deploy = Deployer(rekindle)
        deploy.app("small", SMALL)
        for change, words in (
            ("flow.step(one)", "whose result no other takes, and this one has two, one"),
            ("flow.step(two, rekindle.Workflow().step(one))", "the steps one are of another workflow"),
            ('flow.step(rekindle.Function.from_name("small", "three"), flow.steps[-1])', "calls small-three, which the file does not have"),
            ('app.workflow("one")', "has 'one' twice"),
            ('app.workflow("x", timeout=0)', "timeout is 0; give a number of seconds"),
            ('app.workflow("x", patience=1)', "there is no option 'patience'"),
            ('flow.step(one, flow.step(rekindle.Function.from_name("other", "f"), flow.steps[-1]))', "nothing is deployed as 'f' of the app 'other'"),
        ):
            with pytest.raises(CommandError) as raised:
                deploy.app("small", f"{SMALL}\n{change}\n")
            assert words in raised.value.message
        assert package.Function.from_name("small", "both").remote(1) == 4
        for words, said in (
            (("drain", "small-both"), "is a workflow"),
            (("scale", "small-both", "--min", 1), "is a workflow"),
            (("serve", "none", "--name", "small-both"), "is a workflow"),
        ):
            with pytest.raises(CommandError, match=said):
                rekindle(*words)
        graph = tmp_path / "graph.json"
        step = {"name": "s", "service": "small-one", "method": "one"}
        whole = {"steps": [step], "least": 1, "expiry_ms": 1000, "timeout_ms": 1000, "most": 1}
        for name, change, said in (
            ("small-one", {}, "is a service of an image"),
            ("web", {"steps": []}, "it has 0 steps"),
            ("web", {"steps": [step | {"service": "none"}]}, 'calls "none", which is not there'),
            ("web", {"steps": [step | {"tenant": "x"}]}, "its own tenant.s services and nobody.s alone"),
            ("web", {"steps": [step, step | {"after": [1]}]}, "comes after step 1, which is not before it"),
            ("web", {"more": 1}, "unknown field"),
        ):
            graph.write_text(json.dumps(whole | change))
            with pytest.raises(CommandError, match=said):
                rekindle("serve-workflow", graph, "--name", name)
        graph.write_text(json.dumps(whole))
        port = rekindle.json("serve-workflow", graph, "--name", "web")["port"]
        answer, content = post(port, "/-/call/web", encode([[1], {}]))
        assert decode(content) == 2
        # What is no deployment's stays with each deployment.
        assert deploy.app("small", SMALL)["removed"] == []
        assert rekindle.json("unserve", "web")["name"] == "web"


def test_a_tenants_workflow_needs_its_token_and_has_its_rate():
    with begun() as rekindle:
        deploy = Deployer(rekindle)
        token = rekindle("tenant", "create", "a", "--rate", "2/h").strip()
        rekindle("tenant", "create", "b")
        deploy.app("small", SMALL)
        rekindle.json("deploy", deploy.directory / "small.py", "--python", sys.executable, "--tenant", "a")
        found = lambda **options: package.Function.from_name("small", "both", **options)
        with pytest.raises(package.TokenError, match="needs a token"):
            found(tenant="a").remote(1)
        # Its steps are not counted beside it.
        assert found(tenant="a", token=token).remote(1) == 4
        assert found(tenant="none").remote(2) == 6
        with pytest.raises(package.QueueFullError, match="come more often than they may"):
            for _ in range(5):
                found(tenant="a", token=token).remote(1)
        rows = rekindle.json("services")["workflows"]
        assert sorted((row["name"], row["tenant"] or "", row["steps"][0].get("tenant", "")) for row in rows) == [
            ("small-both", "", ""),
            ("small-both", "a", "a"),
        ]
        assert [row["tenant"] for row in rekindle.json("services", "--tenant", "a")["workflows"]] == ["a"]
        with pytest.raises(CommandError, match="small-both"):
            rekindle("tenant", "rm", "a")
