"""The comparison of a library's own tests natively and in a sandbox (`benches/suites`), with a suite of its own."""

import json
import subprocess
import sys

from rekindle import BINARIES, ROOT

SUITE = {
    "test_ends.py": """
import os, pytest
def test_passes(): pass
def test_fails(): assert False
def test_skips(): pytest.skip("not here")
def test_knows_where_it_is(): assert "rekindle" not in os.environ.get("LD_LIBRARY_PATH", "")
""",
    "test_dies.py": """
import os
def test_ends_the_process(): os._exit(1)
""",
}


def test_what_ends_otherwise_in_a_sandbox_is_found(tmp_path):
    suite = tmp_path / "suite"
    suite.mkdir()
    for name, text in SUITE.items():
        (suite / name).write_text(text)
    out = tmp_path / "out.json"
    command = [sys.executable, ROOT / "benches/suites/run", "--tests", suite, "--out", out, "--gpu", "emulated", "--bin", BINARIES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    found = json.loads(out.read_text())
    ends, dies = (next(row for row in found["files"] if row["file"] == name) for name in SUITE)
    assert (ends["passed"], ends["failed"], ends["skipped"], ends["compared"]) == (2, 1, 1, 4)
    assert list(ends["different"]) == ["test_ends::test_knows_where_it_is"]
    assert "no report" in dies["native_problem"] and "no report" in dies["sandbox_problem"] and not dies["compared"]
