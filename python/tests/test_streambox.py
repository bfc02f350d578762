"""The benchmark of workflows, for a few seconds: what it writes is whole, and its comparison of results finds what is wrong."""

import json
import signal
import subprocess
import sys

import numpy
import pytest
from conftest import ROOT
from harness import BINARIES

PROGRAM = ROOT / "benches/streambox/run"
sys.path[:0] = [str(ROOT / "benches/gpu"), str(ROOT / "benches/streambox")]

from answers import agree  # noqa: E402
from tables.streambox import of_one  # noqa: E402


def measured(out, *words):
    done = subprocess.run([sys.executable, PROGRAM, "--bin", BINARIES, "--out", out, *words], capture_output=True, text=True, timeout=300)
    return done, json.loads(out.read_text())["now"]


def test_each_way_gives_right_results_and_a_row_for_each_part(tmp_path):
    parts = ["start", "throughput", "handing", "beside"]
    done, row = measured(tmp_path / "results.json", "--only", "traffic", "--seconds", "0.5", "--parts", *parts)
    assert done.returncode == 0, done.stderr
    assert "MPS is of NVIDIA GPUs alone" in row["ways"].pop("mps")["unavailable"]
    for way, rows in row["ways"].items():
        assert list(rows) == ["deploy"] * (way == "rekindle") + parts
        assert rows["start"]["wrong"] == 0 and rows["start"]["functions"] == 5
        answers = rows["throughput"]["traffic"]
        assert answers["wrong"] == 0 and not answers["errors"] and answers["latencies_s"]
        assert all(one["wrong"] == 0 and min(one["seconds"]["whole"]) > 0 for one in rows["handing"]["sizes"])
        assert rows["beside"]["wrong"] == 0 and len(rows["beside"]["noise_rounds"]) == 7
    assert list(row["ways"]) == ["rekindle", "streams", "processes"]
    assert done.stdout.splitlines() == of_one(row | {"ways": row["ways"] | {"mps": {"unavailable": "MPS is of NVIDIA GPUs alone"}}})
    assert str(ROOT) not in json.dumps(row)


def test_what_is_measured_when_the_budget_is_over_is_written(tmp_path):
    out = tmp_path / "results.json"
    words = ["--only", "image", "--ways", "streams", "--seconds", "100", "--budget", "300"]
    with subprocess.Popen(
        [sys.executable, PROGRAM, "--bin", BINARIES, "--out", out, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as program:
        said = []
        for line in program.stderr:
            said.append(line)
            if "streams: throughput" in line:
                # What its timer sends, as if the time were over.
                program.send_signal(signal.SIGALRM)
    assert program.returncode == 1 and "the 300 s are over" in said[-1], said
    row = json.loads(out.read_text())["now"]
    assert list(row["ways"]["streams"]) == ["start"]
    assert "the 300 s are over" in row["ended"]


@pytest.mark.parametrize(
    "found",
    [
        {"person": 3, "pixels": numpy.full((2, 2), 9, "uint8")},
        {"person": 2, "pixels": numpy.full((2, 3), 9, "uint8")},
        {"person": 2, "pixels": numpy.full((2, 2), 11, "uint8")},
        {"person": 2},
        None,
    ],
)
def test_a_wrong_result_is_found(found):
    expected = {"person": 2, "pixels": numpy.full((2, 2), 9, "uint8")}
    assert agree({"person": 2, "pixels": numpy.full((2, 2), 10, "uint8")}, expected)
    assert not agree(found, expected)
