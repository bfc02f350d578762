"""What `make install` puts in place works by itself, and only from there."""

import shutil
import subprocess

from rekindle import ROOT, Rekindle
from training.pace import PROGRAM, Pace


def test_an_installation_runs_checkpoints_and_restores(tmp_path):
    subprocess.run([ROOT / "scripts/install", tmp_path], check=True, capture_output=True)
    assert (tmp_path / "share/man/man1/rekindle-run.1").stat().st_size
    assert "rekindle" in (tmp_path / "share/bash-completion/completions/rekindle").read_text()
    for file in (PROGRAM, ROOT / "examples/01_train.py"):
        shutil.copy(file, tmp_path)
    program = tmp_path / PROGRAM.name
    with Rekindle(binaries=tmp_path / "bin") as rekindle:
        findings = {finding["need"]: finding for finding in rekindle.json("doctor")["findings"]}
        assert findings["CRIU"]["ok"]
        pace = Pace(rekindle, 10)
        rekindle.run("training", *pace.command("--steps", 20, "--rows", 8, "--hidden", 8, "--pause", 0.05, program=program))
        rekindle.wait_lines("training", 3)
        rekindle("checkpoint", "training", "--to", "image", "--stop")
        pace.end()
        rekindle.restore("image", "restored")
        assert rekindle.wait_end("restored")[-1] == "done"
