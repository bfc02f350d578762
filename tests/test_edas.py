"""The comparison of benches/edas: every way answers every request rightly, and what it measures with is what it says."""

import json
import subprocess
import sys
import threading
import time
from socket import socketpair

import numpy
import pytest
from rekindle import BINARIES, ROOT

sys.path[:0] = [str(ROOT / "benches"), str(ROOT / "benches/edas")]

import fetch  # noqa: E402
import instance  # noqa: E402
import load  # noqa: E402
import machine  # noqa: E402
import native  # noqa: E402
import objects  # noqa: E402
import summary  # noqa: E402

MEGABYTE = 1 << 20


def test_every_way_answers_every_request_rightly(tmp_path):
    ways, names = ["rekindle", "rekindle-image", "fixed", "contexts"], ["dense-2", "lbm-small", "mri-q-small"]
    out = tmp_path / "results.json"
    command = [sys.executable, ROOT / "benches/edas/run", "--out", out, "--bin", BINARIES, "--only", *names, "--ways", *ways]
    # The emulated GPU gives sandboxes pieces of 2 MB, so that what is little for the baselines is too little for any of them.
    command += ["--seconds", 4, "--peak", 1, "--rates", 30, 300, "--limit-gb", 0, 2e-3, 0.02, "--rounds", 1, "--budget", 500]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(out.read_text())
    assert not found["left_out"] and set(found["prepared"]) == set(names)
    assert set(found["runs"]) == {f"{way}{limit}" for way in ways for limit in ("", " 0.002 GB", " 0.02 GB")}
    for way in ("rekindle", "rekindle-image"):
        assert "--service-memory" in found["runs"].pop(f"{way} 0.002 GB")["error"]
        assert found["runs"][f"{way} 0.02 GB"]["services"]["limit_bytes"] == 20_000_000
        assert 0 < found["runs"][f"{way} 0.02 GB"]["services"]["used_bytes"]["emulated"] <= 20_000_000
    for label, run in found["runs"].items():
        whole = run["summary"]["all"]
        assert whole["requests"] == found["trace"]["requests"] > 0 == whole["wrong"] == whole["failed"], label
        assert {row["function"] for row in run["requests"]} == set(names)
        assert run["peak"]["answers_per_second"] > 0 == run["peak"]["wrong"] == run["peak"]["failed"]
    first = {label: next(row for row in found["runs"][label]["requests"] if row["found"] != "data") for label in ("fixed", "contexts")}
    assert list(first["fixed"]["seconds"]) == ["wait", "fork", "context", "host", "fetch", "copy", "compute"]
    assert first["contexts"]["found"] == "context" and "context" not in first["contexts"]["seconds"]
    for way in ("fixed", "contexts"):
        admission = found["runs"][f"{way} 0.002 GB"]["admission"]
        assert 0 < admission["most"] <= admission["limit"]
    assert "image" in found["runs"]["rekindle"]["summary"]["all"]["found"]
    # Each object once, for all instances of Rekindle; anew for each instance of the baselines.
    sizes = sum(row["bytes"] for row in found["prepared"].values())
    assert found["runs"]["rekindle"]["fetched_bytes"] == sizes and found["runs"]["rekindle-image"]["fetched_bytes"] == 0
    assert found["runs"]["fixed 0.002 GB"]["fetched_bytes"] > sizes
    assert {"running", "in a row", "asleep-gpu", "asleep-host", "image", "store"} == set(found["stages"]["seconds"])
    assert {"running", "in a row"} == set(found["stages"]["native"])


def test_a_wrong_answer_is_told_from_a_right_one():
    row = {"answers": [[1.0, 2.0, 3.0]], "tolerance": 1e-3}
    assert load.is_right(row, 0, [1.001, 2.0, 3.0]) and not load.is_right(row, 0, [1.003, 2.0, 3.0])
    assert not load.is_right(row, 0, [1.0, 2.0]) and not load.is_right(row, 0, [1.0, float("nan"), 3.0])
    asked = load.asked({"f": row}, lambda name, request: {"answer": [0.0, 0.0, 0.0]}, "f", 0, 0.0)
    assert asked["right"] is False


def test_results_have_no_paths_of_the_machine():
    text = 'File "/tmp/x-1/run.py", line 3: no /var/lib/state/object at http://127.0.0.1:80/one/two'
    (said,) = json.loads(summary.document({"error": [text]}))["error"]
    assert said == 'File "run.py", line 3: no object at http://127.0.0.1:80/one/two'


def test_objects_are_safetensors_with_aligned_tensors(tmp_path):
    made = {"a": numpy.arange(7, dtype="float32"), "b": numpy.arange(6, dtype="uint8").reshape(2, 3), "c": numpy.arange(64, dtype="int64")}
    tensors = [("a", "F32", (7,)), ("b", "U8", (2, 3)), ("c", "I64", (64,))]
    size = objects.write(tmp_path / "o", tensors, lambda name: made[name])
    whole = (tmp_path / "o").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    ends = [row["data_offsets"] for row in header.values()]
    # Without holes, as the format wants it.
    assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])] and 8 + length + ends[-1][1] == size == len(whole)
    for name, row in objects.read_plan(tmp_path / "o").items():
        assert row.begin % objects.ALIGNMENT == 0
        assert whole[row.begin : row.end] == made[name].tobytes()


def test_the_store_keeps_to_its_bandwidth(tmp_path):
    contents = numpy.random.default_rng(1).integers(0, 256, 30 * MEGABYTE, "uint8")
    (tmp_path / "object").write_bytes(contents.tobytes())
    with machine.Store(tmp_path, 0.24) as store:
        start = time.monotonic()
        found = fetch.fetch(store.url("object"), contents.size)
        taken = time.monotonic() - start
        assert numpy.array_equal(found, contents)
        # 30 MiB at 30 MB/s, but for what may come at once.
        assert taken > 0.9
        with pytest.raises(OSError, match="answered 404"):
            fetch.fetch(store.url("another"), 10)


class Fake:
    """A function whose answer is its data's sum."""

    def open(self):
        pass

    def take_host(self, data):
        self.data = data

    def forget(self):
        self.data = None

    def compute(self, request):
        time.sleep(0.05)
        return [float(self.data.sum()) + request]


class FakeContainers:
    """Instances are threads."""

    def __init__(self, rows):
        self.rows, self.forks = rows, []

    def fork(self, name):
        self.forks.append(name)
        ours, theirs = socketpair()
        threading.Thread(target=self.serve, args=(name, theirs), daemon=True).start()
        return instance.Lines(ours)

    def serve(self, name, connection):
        lines = instance.Lines(connection)
        instance.serve(Fake(), self.rows[name], lines)
        lines.file.close()
        connection.close()


@pytest.fixture
def rows(tmp_path):
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 100)
    with machine.Store(tmp_path, 1) as store:
        yield {name: {"url": store.url(name), "bytes": 100, "gpu_bytes": 40, "most": 2} for name in "abc"}


def test_the_baselines_admit_what_fits_and_end_who_was_used_longest_ago(rows):
    containers = FakeContainers(rows)
    pool = native.Pool(containers, rows, limit_bytes=100, context_bytes=10, host_bytes=1000)
    found = lambda name: pool.answer(name, 1)["found"]
    assert pool.answer("a", 1)["answer"] == [100 * ord("a") + 1.0]
    assert [found("b"), found("a")] == ["nothing", "data"] and pool.used == 100
    # There is room for two: b goes, which was used before a.
    assert [found("c"), found("a"), found("b"), found("a")] == ["nothing", "data", "nothing", "data"]
    assert containers.forks == ["a", "b", "c", "b"] and pool.ended == 2 and pool.most == 100
    # Two at once of one function, and the third waits for one of them.
    threads = [threading.Thread(target=pool.answer, args=("a", 0)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert containers.forks[4:] == ["a"] and pool.used == 100
    pool.close()
    with pytest.raises(native.BaselineError, match="needs 50 bytes of GPU memory, and 0 is the limit"):
        pool.answer("a", 0)


def test_contexts_that_are_made_ahead_outlive_their_data(rows):
    containers = FakeContainers(rows)
    pool = native.Pool(containers, rows, limit_bytes=100, context_bytes=10, host_bytes=1000)
    pool.ahead(["a", "b"])
    assert sorted(containers.forks) == ["a", "a", "b", "b"] and pool.used == 40
    found = [pool.answer(name, 1)["found"] for name in "abab"]
    assert found == ["context", "context", "context", "context"] and pool.used == 80
    assert pool.answer("c", 1)["found"] == "nothing"
    assert len(containers.forks) == 5 and pool.used <= 100
    pool.close()


def test_an_instance_ends_in_the_middle_of_a_fetch(tmp_path):
    (tmp_path / "kernels").write_bytes(b"")
    (tmp_path / "dense-1").write_bytes(bytes(4 * MEGABYTE))
    programs = machine.Programs(None, "native", tmp_path)
    containers = native.Containers(tmp_path / "socket", programs.start)
    # All of it would take half a minute.
    with machine.Store(tmp_path, 1e-3) as store:
        row = {"url": store.url("dense-1"), "bytes": 4 * MEGABYTE, "plan": {}}
        (tmp_path / "dense-1.json").write_text(json.dumps(row))
        try:
            containers.begin(["dense-1"], "emulated", tmp_path)
            one = native.Instance("dense-1")
            one.lines = containers.fork("dense-1")
            failures = []
            loading = threading.Thread(target=lambda: failures.append(pytest.raises(native.BaselineError, one.do, "load")))
            loading.start()
            time.sleep(0.5)
            start = time.monotonic()
            one.end()
            loading.join(10)
            assert time.monotonic() - start < 5 and "it ended" in str(failures[0].value)
        finally:
            containers.close()
            programs.end()
