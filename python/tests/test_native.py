"""Functions without Python: libraries in C and in Rust, deployed by a manifest and called as functions in Python are."""

import datetime
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import rekindle as package
from conftest import ROOT, Deployer, begun
from harness import BINARIES, CommandError
from rekindle.codec import decode, encode

INCLUDE = ROOT / "crates/runner/include"
RUST = BINARIES / "libexample_functions.so"
NATIVE = Path(__file__).parent / "native"


def build(source, to, *options):
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-fPIC", "-I", INCLUDE, "-o", to, source, *options], check=True)
    return to


def trials():
    """The tests' library in Rust."""
    command = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "rekindle-function", "--example", "trials"]
    subprocess.run(command, cwd=ROOT, check=True)
    return BINARIES / "examples/libtrials.so"


def library(source, directory):
    return build(source, directory / f"lib{source.stem}.so", "-shared")


class Native(Deployer):
    """Writes manifests, and deploys them."""

    def manifest(self, name, libraries, extra="", **options):
        options = {"gpu": "emulated", "scaledown_window": 600} | options
        rows = "\n".join(f"{key} = {value!r}" for key, value in options.items())
        file = self.directory / f"{name}.toml"
        file.write_text(f"app = {name!r}\nlibraries = {[str(path) for path in libraries]}\n{extra}\n[options]\n{rows}\n")
        return file

    def native(self, name, libraries, extra="", **options):
        return self(self.manifest(name, libraries, extra, **options))

    def library(self, name):
        return library(NATIVE / f"{name}.c", self.directory)

    def instances(self, name):
        """What the runner of an app says of its instances."""
        with urllib.request.urlopen(f"{self.url(name)}/-/about") as answer:
            return decode(answer.read())["instances"]

    def url(self, name):
        return f"http://127.0.0.1:{self.service(f'{name}-runner')['port']}"

    def pid(self, name):
        return next(row["pid"] for row in self.rekindle.sandboxes() if row["name"].startswith(f"{name}-runner-") and row["pid"])


@pytest.fixture
def natives():
    with begun(REKINDLE_COMMAND=str(BINARIES / "rekindle")) as instance:
        yield Native(instance)


@pytest.fixture(scope="module")
def calls():
    """The examples and the tests' own library, deployed once for tests that change nothing."""
    with begun() as instance:
        deployer = Native(instance)
        saxpy = library(ROOT / "examples/native/c/saxpy.c", deployer.directory)
        deployer.native("calls", [saxpy, deployer.library("various"), RUST, trials()], concurrency=8, timeout=60)
        yield deployer


def function(name, app="calls", **options):
    return package.Function.from_name(app, name, **options)


def test_functions_in_c_and_in_rust_are_called_as_those_in_python(calls):
    x, y = np.arange(1000, dtype="float32"), np.ones(1000, "float32")
    np.testing.assert_array_equal(function("saxpy").remote(2.0, x, y), 2 * x + 1)
    np.testing.assert_array_equal(function("scale").remote(x.reshape(10, 100), 0.5), x.reshape(10, 100) / 2)
    np.testing.assert_array_equal(package.Cls.from_name("calls", "runner")().saxpy.remote(1.0, x, y), x + 1)


EVERYTHING = [
    None, True, 7, -(2**40), 2**63 - 1, 2.5, 1 - 2j, "text – ü", b"\x00bytes", [1, [2, "three"]], (4, (5,)), {6}, frozenset({7}),
    {"key": [8], 9: None}, datetime.datetime(2026, 11, 25, 1, 2, 3), np.arange(6.0).reshape(2, 3), np.float32(1.5), np.zeros(0, "int8"),
]  # fmt: skip
BEYOND_C = [2**64 - 1, -(2**100), np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), np.array(["2026-11-25"], "M8[D]")]


def same(one, other):
    if isinstance(one, np.ndarray):
        return type(other) is np.ndarray and one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("value", EVERYTHING, ids=lambda value: type(value).__name__)
def test_values_of_every_kind_come_and_go_in_c(calls, value):
    assert same(function("echo").remote(value), value)
    assert same(function("echo").remote(named=value), value)


@pytest.mark.parametrize("value", [*EVERYTHING, *BEYOND_C], ids=lambda value: type(value).__name__)
def test_values_of_every_kind_come_and_go_in_rust(calls, value):
    (found,), named = function("same").remote(value, named=value)
    assert same(found, value) and list(named) == ["named"] and same(named["named"], value)


def test_arrays_of_a_result_lie_each_for_itself(calls):
    array = np.arange(200_001, dtype="float64")
    first, second, number = function("parts").remote(array, 3)
    np.testing.assert_array_equal(np.concatenate([first, second]), array)
    assert number == 3 and first.shape == (100_000,)


def test_what_c_cannot_have_is_refused(calls):
    with pytest.raises(OverflowError, match="more than 64 bits"):
        function("echo").remote(2**63)


def test_nothing_is_a_result_too(calls):
    assert function("nothing").remote() is None


def test_errors_are_python_s_if_it_has_one_of_that_name_and_remote_errors_else(calls):
    for name, words in (("raises", "in C"), ("fails", "in Rust")):
        with pytest.raises(ValueError, match=f"^wrong {words}") as raised:
            function(name).remote("ValueError", f"wrong {words}")
        assert f"ValueError: wrong {words}" in raised.value.__notes__[0]
        with pytest.raises(package.RemoteError, match=f"^PumpError: stuck {words}"):
            function(name).remote("PumpError", f"stuck {words}")
        with pytest.raises(package.RefNotFoundError, match="^gone"):
            function(name).remote("RefNotFoundError", "gone")
    with pytest.raises(package.RemoteError, match="it returned 7, and did not say why"):
        function("silent").remote()
    with pytest.raises(TypeError, match="0 arguments were given, and 1 are needed"):
        function("scale").remote()
    with pytest.raises(TypeError, match="argument 0 is text; give an array"):
        function("scale").remote("text", 1)
    with pytest.raises(package.NotFoundError, match="calls-runner has no function .missing.; it has saxpy, echo, "):
        function("missing").remote()
    assert "raises: about to fail" in calls.rekindle("logs", "calls-runner-1")


def test_what_is_printed_is_in_the_log(calls):
    function("says").remote("printed in C")
    calls.rekindle.wait(lambda: "printed in C" in calls.rekindle("logs", "calls-runner-1"), "the line")


def test_an_instance_that_cannot_enter_is_none(calls):
    before = calls.instances("calls")
    for _ in range(3):
        with pytest.raises(PermissionError, match="nobody comes in"):
            function("barred").remote()
    assert calls.instances("calls")["live"] <= before["live"]
    assert function("echo").remote(1) == 1


def test_a_panic_is_of_its_call_alone_and_of_its_instance(calls):
    assert [function("panics").remote() for _ in range(2)] == [1, 2]
    pid = calls.pid("calls")
    with pytest.raises(package.RemoteError, match="^Panic: out of reach"):
        function("panics").remote("out of reach")
    # What it had is of no further use.
    assert function("panics").remote() == 1
    assert calls.pid("calls") == pid


def test_calls_come_by_http(calls):
    def ask(path, body=None):
        request = urllib.request.Request(calls.url("calls") + path, body, method="POST" if body is not None else "GET")
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.headers["X-Rekindle"], answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["X-Rekindle"], error.read()

    status, kind, body = ask("/-/call/echo", b"".join(encode([["by hand"], {}])))
    assert (status, kind, decode(body)) == (200, "result", "by hand")
    assert ask("/-/ready")[:2] == (200, "result")
    assert ask("/-/call/echo", b"RKM1 is not all")[:2] == (400, "misunderstood")
    assert ask("/-/call/echo", b"".join(encode("no call")))[:2] == (500, "raised")
    assert ask("/elsewhere")[:2] == (404, "unknown")
    about = decode(ask("/-/about")[2])
    assert {"saxpy", "scale", "total", "echo"} <= set(about["methods"]) and about["timeout"] == 60


def hold(natives, app, marks):
    """Calls of `count` that are all under way."""
    under_way = [function("count", app).spawn(natives.mark(mark)) for mark in marks]
    for mark in marks:
        natives.held(mark)
    return under_way


def test_several_at_once_have_an_instance_and_a_stream_each(calls):
    # One more may come: the question how many there are.
    marks = [f"held-{number}" for number in range(7)]
    under_way = hold(calls, "calls", marks)
    assert calls.instances("calls")["live"] >= 7
    for mark in marks:
        calls.let_go(mark)
    rows = [call.get(timeout=60) for call in under_way]
    assert len({stream for _, _, stream in rows}) == 7
    assert all(stream > 0 for _, _, stream in rows), "an instance keeps its stream"
    # Who comes then has one of these.
    started = calls.instances("calls")["started"]
    assert function("count").remote()[0] == 2
    assert calls.instances("calls")["started"] == started


def test_calls_at_once_compute_what_each_of_them_is_to(calls):
    x = np.arange(5000, dtype="float32")
    factors = [float(number) for number in range(40)]
    rows = list(function("saxpy").map(factors, [x] * 40, [x] * 40, window=16))
    for factor, row in zip(factors, rows, strict=True):
        np.testing.assert_array_equal(row, np.float32(factor) * x + x)


def test_instances_of_other_functions_go_where_there_may_be_no_more(natives):
    natives.native("few", [natives.library("various")], concurrency=2)
    under_way = hold(natives, "few", ["one"])
    assert function("echo", "few").remote(1) == 1
    assert function("nothing", "few").remote() is None
    assert natives.instances("few") | {"start_seconds": 0, "stream_seconds": 0} == {
        "live": 2, "waiting": 1, "lost": 0, "started": 3, "start_seconds": 0, "stream_seconds": 0,
    }  # fmt: skip
    natives.let_go("one")
    under_way[0].get(timeout=60)


def test_an_instance_that_is_not_called_goes_while_its_runner_stays(natives):
    natives.native("idle", [natives.library("various")], scaledown_window=0.4)
    assert function("count", "idle").remote()[0] == 1

    def is_gone():
        function("nothing", "idle").remote()
        return "count: an instance leaves" in natives.rekindle("logs", "idle-runner-1")

    natives.rekindle.wait(is_gone, "the instance to leave")
    assert function("count", "idle").remote()[:2] == [1, 2]


def test_a_call_that_takes_too_long_has_its_thread_alone(natives):
    natives.native("late", [natives.library("various")], timeout=0.5, concurrency=1)
    with pytest.raises(package.FunctionTimeoutError, match="late-runner.count took longer than 0.5 s"):
        function("count", "late").remote(natives.mark("stuck"))
    assert function("count", "late").remote() == [1, 2, pytest.approx(1, abs=2**63)]
    assert natives.instances("late")["lost"] == 1
    natives.let_go("stuck")
    natives.rekindle.wait(lambda: natives.instances("late")["lost"] == 0, "the late call to end")
    natives.rekindle.wait(lambda: "an instance leaves" in natives.rekindle("logs", "late-runner-1"), "its instance to leave")
    assert function("count", "late").remote()[:2] == [2, 2]


def test_calls_are_made_again_as_the_manifest_says(natives):
    natives.native("retries", [natives.library("various")], retries=3)
    assert function("flaky", "retries").remote(3) == 4
    with pytest.raises(OSError, match="not yet"):
        function("flaky", "retries").remote(100)
    assert function("flaky", "retries").remote(0) == 9


def test_functions_of_a_tenant_are_called_with_its_token(natives):
    token = natives.rekindle("tenant", "create", "blue").strip()
    natives.native("owned", [natives.library("various")], "tenant = 'blue'")
    assert natives.service("owned-runner")["tenant"] == "blue"
    with pytest.raises(package.TokenError):
        function("echo", "owned").remote(1)
    assert function("echo", "owned", token=token).remote(1) == 1


def test_a_crash_takes_the_runner_and_another_is_restored(natives):
    natives.native("crash", [natives.library("various")], concurrency=4)
    under_way = hold(natives, "crash", ["beside"])
    pid = natives.pid("crash")
    with pytest.raises(package.InstanceLostError):
        function("crash", "crash").remote()
    with pytest.raises(package.InstanceLostError):
        under_way[0].get(timeout=60)
    natives.let_go("beside")
    assert function("echo", "crash").remote("again") == "again"
    assert natives.pid("crash") != pid


def test_a_fault_on_the_gpu_ends_the_runner_and_another_is_restored(natives):
    natives.native("fault", [natives.library("various"), RUST])
    x = np.ones(4, "float32")
    np.testing.assert_array_equal(function("scale", "fault").remote(x, 2), 2 * x)
    with pytest.raises(package.RemoteError, match="the kernel failed"):
        function("fault", "fault").remote()
    natives.rekindle.wait(lambda: "this runner ends" in natives.rekindle("logs", "fault-runner-1", check=False), "the runner to end")
    np.testing.assert_array_equal(after(natives, x), 2 * x)


def after(natives, x):
    """The first call that finds the new runner: the gateway may not know yet that the other one has ended."""
    found = []

    def is_answered():
        try:
            found.append(function("scale", "fault").remote(x, 2))
        except package.InstanceLostError:
            return False
        return True

    natives.rekindle.wait(is_answered, "another runner")
    return found[0]


def test_the_image_has_all_that_was_set_up_and_the_libraries_too(natives):
    saxpy = library(ROOT / "examples/native/c/saxpy.c", natives.directory)
    natives.native("zero", [saxpy, natives.library("various")], scaledown_window=0, sleep_window=0)
    x = np.arange(64, dtype="float32")
    np.testing.assert_array_equal(function("saxpy", "zero").remote(3.0, x, x), 4 * x)
    natives.come_to("zero-runner")
    # What lies there now is another one, and is asked for by nobody.
    saxpy.unlink()
    saxpy.write_text("no library")
    np.testing.assert_array_equal(function("saxpy", "zero").remote(3.0, x, x), 4 * x)
    natives.come_to("zero-runner")
    assert function("count", "zero").remote()[:2] == [1, 1]


def test_what_sleeps_wakes_with_its_instances(natives):
    natives.native("sleeps", [natives.library("various"), RUST], scaledown_window=0.2, sleep_window=600)
    x = np.arange(64, dtype="float32")
    for _ in range(3):
        np.testing.assert_array_equal(function("scale", "sleeps").remote(x, 3), 3 * x)
        natives.come_to("sleeps-runner", "asleep")


def test_the_end_of_a_runner_leaves_and_tears_down(natives):
    natives.native("ends", [natives.library("various")])
    assert function("count", "ends").remote()[0] == 1
    with natives.rekindle.begin("logs", "ends-runner-1", "-f").process as log:
        natives.rekindle("unserve", "ends-runner")
        said = log.communicate(timeout=120)[0]
    assert said.index("count: an instance leaves") < said.index("count: all is torn down")


def test_arrays_are_handed_on_between_c_rust_and_python(natives):
    natives.native("native", [natives.library("various"), RUST], share="team")
    natives.app("python", SHARING)
    x = np.arange(300_000, dtype="float32")
    keep, fetch = (package.Function.from_name("python", name) for name in ("keep", "fetch"))
    ref = function("keep", "native").remote(x)
    assert (ref.dtype, ref.shape) == ("float32", x.shape)
    np.testing.assert_array_equal(fetch.remote(ref), x)
    np.testing.assert_array_equal(function("fetch", "native").remote(keep.remote(x)), x)
    assert function("total", "native").remote(keep.remote(x)) == x.sum(dtype="float64")
    np.testing.assert_array_equal(fetch.remote(function("scale", "native").remote(x, 2, keep=True)), 2 * x)
    function("forget", "native").remote(ref)
    for gets in (fetch, function("fetch", "native"), function("total", "native")):
        with pytest.raises(package.RefNotFoundError):
            gets.remote(ref)
    with pytest.raises(package.SerializationError, match="cannot be put"):
        function("keep", "native").remote(np.zeros(0, "float32"))
    # A step of a workflow has references that are used up.
    flow = package.Workflow(least=0)
    flow.step(function("total", "native"), flow.step(package.Function.from_name("python", "make")))
    arrays = lambda: [(row["owner"], row["arrays"]) for row in natives.rekindle.json("stats", "--no-stream")["handed_on"]]
    before = arrays()
    assert flow.remote(1000) == 1000.0
    assert arrays() == before
    # Functions without Python have what is passed to them as an array as one, wherever it lay.
    tripled = package.Function.from_name("python", "tripled")
    for count in (x.size, 1000):
        np.testing.assert_array_equal(tripled.remote(count), np.full(count, 3, "float32"))
    natives.rekindle.wait(lambda: arrays() == before, "what was passed to be gone")


SHARING = """
@app.function(gpu="emulated", share="team", scaledown_window=600)
def keep(array):
    return rekindle.put(array)

@app.function(gpu="emulated", share="team", scaledown_window=600)
def fetch(ref):
    return rekindle.get(ref)

@app.function(gpu="emulated", share="team", scaledown_window=600)
def make(count):
    import numpy
    ref = rekindle.put(numpy.ones(count, "float32"))
    array = rekindle.get(ref)
    ref.drop()
    return array

@app.function(gpu="emulated", share="team", scaledown_window=600)
def tripled(count):
    return rekindle.Function.from_name("native", "scale").remote(make.local(count), 3)
"""


def test_data_is_declared_in_the_manifest(natives):
    values = np.arange(4096, dtype="float32").reshape(64, 64)
    file = natives.directory / "values.raw"
    file.write_bytes(values.tobytes())
    missing = natives.directory / "missing.raw"
    declared = (("values", file, "float32"), ("missing", missing, "float32"), ("wide", file, "float64"))
    tables = "".join(f'[data.{name}]\nurl = "file://{path}"\ndtype = "{dtype}"\nshape = [64, 64]\n' for name, path, dtype in declared)
    natives.native("data", [natives.library("various")], tables)
    np.testing.assert_array_equal(function("loaded", "data").remote("values"), values)
    np.testing.assert_array_equal(function("loaded", "data").remote("values"), values)
    with pytest.raises(package.DataNotFoundError):
        function("loaded", "data").remote("missing")
    with pytest.raises(
        package.DataSizeError, match=f"values.raw has {values.nbytes} bytes, and {2 * values.nbytes} were declared by its shape and dtype"
    ):
        function("loaded", "data").remote("wide")
    with pytest.raises(KeyError, match="no data is declared as .others."):
        function("loaded", "data").remote("others")
    missing.write_bytes(values.tobytes())
    np.testing.assert_array_equal(function("loaded", "data").remote("missing"), values)


def test_a_new_library_takes_the_place_of_the_old_one_without_a_failed_call(natives):
    source, lib = NATIVE / "program.c", natives.directory / "libanswer.so"
    link = ["-L", BINARIES, "-lrekindle", "-Wl,-rpath," + str(BINARIES)]
    build(source, lib, "-shared", "-DANSWER=1", *link)
    first = natives.native("again", [lib])
    answer, over, found = function("answer", "again"), threading.Event(), set()

    def ask():
        while not over.wait(0.005):
            found.add(answer.remote())

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        natives.rekindle.wait(lambda: found == {1}, "an answer")
        lib.unlink()
        build(source, lib, "-shared", "-DANSWER=2", *link)
        second = natives.native("again", [lib])
        natives.rekindle.wait(lambda: 2 in found, "the other answer")
    finally:
        over.set()
        asking.join()
    assert answer.remote() == 2
    assert (first["services"][0]["port"], second["removed"]) == (second["services"][0]["port"], [])


def test_a_program_of_one_s_own_is_a_runner(natives):
    program = build(NATIVE / "program.c", natives.directory / "answers", "-L", BINARIES, "-lrekindle", f"-Wl,-rpath,{BINARIES}")
    natives.native("own", [natives.library("various")], f"runner = {str(program)!r}")
    assert function("answer", "own").remote() == 42
    assert function("echo", "own").remote("too") == "too"


def test_many_calls_leave_nothing_behind(natives):
    natives.native("many", [natives.library("various"), RUST], concurrency=4, scaledown_window=0.3)
    x = np.arange(2000, dtype="float32")

    def some(count):
        list(function("scale", "many").map([x] * count, range(count), window=4))
        assert list(function("echo", "many").map(range(count), window=4)) == list(range(count))
        for error in function("fails", "many").map(["ValueError"] * 8, ["wrong"] * 8, window=4, return_exceptions=True):
            assert isinstance(error, Exception)

    def settled():
        """Once all instances have gone: what a process has, and the emulated GPU."""
        natives.rekindle.wait(lambda: keep_awake() and natives.instances("many")["live"] <= 1, "instances to go")
        pid = natives.pid("many")
        return len(os.listdir(f"/proc/{pid}/fd")), rss(pid), used()

    def keep_awake():
        return function("nothing", "many").remote() is None

    def used():
        return next(row["device_bytes"] for row in natives.rekindle.sandboxes() if row["name"].startswith("many-runner-") and row["pid"])

    def rss(pid):
        return int(next(line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS:")))

    some(200)
    pid = natives.pid("many")
    descriptors, memory, on_gpu = settled()
    for _ in range(5):
        some(200)

    def is_as_before():
        """What the call that keeps it awake had of the GPU goes a moment after its answer."""
        again, more, on_gpu_again = settled()
        return again <= descriptors and on_gpu_again <= on_gpu and more < memory + 4096

    natives.rekindle.wait(is_as_before, "it to have no more than at first, but 4 MB that the allocator keeps", limit=20)
    assert natives.pid("many") == pid, "it is one and the same runner"


MANIFESTS = [
    ("", "names no app"),
    ('app = "x"', "has nothing to serve"),
    ('app = "x"\nlibraries = ["libnone.so"]', "there is no file .*libnone.so; build it first"),
    ('app = "x"\nlibraries = "liba.so"', "libraries is 'liba.so'; give a list"),
    ('app = "x"\nlibrary = []', "there is no field 'library'"),
    ('app = "x', "is no TOML"),
    ('app = "x"\nlibraries = ["good.so"]\n[options]\nconcurrency = 0', "concurrency is 0"),
    ('app = "x"\nlibraries = ["good.so"]\n[options]\nbase = "torch"', "is for functions in Python"),
    ('app = "x"\nlibraries = ["good.so"]\n[options]\nretries = {many = 1}', "give max_retries"),
    ('app = "x"\nlibraries = ["good.so"]\n[data]\nw = 1', "data.w is 1; give url, dtype and shape"),
    ('app = "x"\nlibraries = ["good.so"]\n[options]\ngpu = "emulated"', "good.so cannot be loaded: .*file too short; give a shared library"),
    ('app = "x"\nlibraries = ["plain.so"]\n[options]\ngpu = "emulated"', "it has no symbol rekindle_library"),
    ('app = "x"\nlibraries = ["libunready.so"]\n[options]\ngpu = "emulated"', "unready of .* did not get ready: ValueError: the weights are missing"),
    ('app = "x"\nlibraries = ["libunready.so", "./libunready.so"]\n[options]\ngpu = "emulated"', "has a function .unready., as .* has"),
]


def test_what_cannot_be_is_said_in_a_sentence(natives):
    (natives.directory / "good.so").write_text("no library")
    natives.library("unready")
    subprocess.run(["cc", "-shared", "-o", natives.directory / "plain.so", "-x", "c", "/dev/null"], check=True)
    for number, (text, sentence) in enumerate(MANIFESTS):
        file = natives.directory / f"wrong-{number}.toml"
        file.write_text(text)
        with pytest.raises(CommandError, match=sentence) as failed:
            natives(file)
        assert len(failed.value.message.splitlines()) == 1
    assert not natives.rekindle.json("services")["services"] and not natives.rekindle.json("images")["images"]


def test_the_examples_run(natives, tmp_path):
    subprocess.run([ROOT / "examples/native/build", tmp_path], check=True, capture_output=True)
    manifest = tmp_path / "function.toml"
    manifest.write_text(manifest.read_text().replace("[options]", '[options]\ngpu = "emulated"'))
    deployed = natives(manifest)
    assert deployed["services"][0]["functions"] == ["saxpy", "scale", "total"]
    assert deployed["services"][0]["call"] == 'rekindle.Function.from_name("native", "saxpy").remote(...)'
    done = subprocess.run([sys.executable, ROOT / "examples/native/call.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.partition(":")[2].strip() for line in done.stdout.splitlines()]
    assert lines == ["[1. 3. 5. 7.]", "[0.  0.5 1.  1.5]", "[0, 1, 2, 3, 4, 5, 6, 7]", "1498500.0"]


def test_the_benchmark_runs(tmp_path):
    command = [sys.executable, ROOT / "benches/native/run", "--bin", BINARIES, "--out", tmp_path / "results.json"]
    done = subprocess.run([*command, "--rounds", "1", "--seconds", "0.2", "--rate", "50"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "results.json").read_text())["now"]
    assert [one["functions"] for one in row["calls"]["native"]] == [1, 2, 4, 8, 16, 32, 48]
    assert all(one["start"] and len(one["start"]) == len(one["stream"]) for one in row["start"]["threads"])
    assert {name: len(values) for name, values in row["start"]["calls"]["native"].items()} == {"zero": 1, "further": 1, "there": 1}
