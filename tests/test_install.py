"""What `make install` puts in place works by itself, and only from there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rekindle import BINARIES, ROOT, Rekindle, criu
from training.pace import PROGRAM, Pace

COUNTER = ROOT / "crates/cli/tests/programs/bump.py"


def test_an_installation_runs_checkpoints_and_restores(tmp_path):
    subprocess.run([ROOT / "scripts/install", tmp_path], check=True, capture_output=True)
    assert (tmp_path / "share/man/man1/rekindle-run.1").stat().st_size
    unit = (tmp_path / "lib/systemd/system/rekindled.service").read_text()
    command = next(line.removeprefix("ExecStart=") for line in unit.splitlines() if line.startswith("ExecStart="))
    assert subprocess.run([*command.split(), "--version"], check=True, capture_output=True, text=True).stdout.startswith("rekindled ")
    assert "@" not in unit.split("[Unit]")[1]
    assert "rekindle" in (tmp_path / "share/bash-completion/completions/rekindle").read_text()
    package = {"PYTHONPATH": str(tmp_path / "share/rekindle/python/src")}
    found = subprocess.run(
        [sys.executable, "-P", "-c", "import rekindle; print(rekindle.__file__)"], env=os.environ | package, capture_output=True, text=True
    )
    assert found.stdout.startswith(str(tmp_path)), found.stderr
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


@pytest.mark.parametrize("library", ["shared", "static"])
def test_a_program_with_functions_is_made_of_what_is_installed(tmp_path, library):
    subprocess.run([ROOT / "scripts/install", tmp_path], check=True, capture_output=True)
    source, program, lib = ROOT / "python/tests/native/program.c", tmp_path / "program", tmp_path / "lib"
    link = [f"-L{lib}", "-lrekindle", f"-Wl,-rpath,{lib}"] if library == "shared" else [lib / "librekindle.a", "-lm", "-ldl", "-lpthread"]
    subprocess.run(["cc", "-I", tmp_path / "include", "-o", program, source, *link], check=True)
    versions = {
        subprocess.run([one, "--version"], check=True, capture_output=True, text=True).stdout for one in (program, tmp_path / "bin/rekindle-runner")
    }
    assert len(versions) == 1 and versions.pop().startswith("rekindle-runner ")


def test_a_system_s_criu_is_used_only_if_it_works(tmp_path):
    private = ROOT / ".build/criu/criu"
    if not private.exists():
        pytest.skip("setup found that the system's CRIU suffices")
    stub = tmp_path / "criu"

    def set_up(script):
        stub.write_text(f"#!/bin/sh\n{script}\n")
        stub.chmod(0o755)
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run([ROOT / "scripts/criu"], env=environment, check=True, capture_output=True, text=True)

    # It says that it is new, and that all went well.
    done = set_up("[ $1 != --version ] || echo Version: 99.1")
    assert done.stdout.strip() == str(private) and "cannot take a process" in done.stderr
    done = set_up("echo Version: 3.17")
    assert done.stdout.strip() == str(private)
    done = set_up(f'exec {private} "$@"')
    assert done.stdout.strip() == str(stub) and "suffices" in done.stderr


def test_an_image_has_the_client_of_its_program(tmp_path):
    """It comes back after an upgrade, beside programs with the new build, and where there is none of this installation."""
    binaries, library = tmp_path / "binaries", tmp_path / "binaries/libcuda.so"
    binaries.mkdir()
    for name in ("rekindle", "rekindled", "libcuda.so"):
        shutil.copy(BINARIES / name, binaries)
    with Rekindle(binaries=binaries, **criu()) as rekindle:
        command = (sys.executable, COUNTER)

        def goes_on(name, least=0, of=rekindle):
            lines = of.wait_lines(name, 3)
            assert int(lines[0]) >= least and [int(line) - int(lines[0]) for line in lines] == list(range(len(lines)))
            return int(lines[-1])

        rekindle.run("first", *command)
        goes_on("first")
        rekindle("checkpoint", "first", "--to", "image", "--leave-running")
        upgrade(library)
        last = goes_on("first")
        # It was started before, and goes on with what it has.
        rekindle("checkpoint", "first", "--to", "later", "--stop")
        rekindle.run("new", *command)
        goes_on("new")
        rekindle("shutdown")
        rekindle.restore("image", "old")
        rekindle.restore("later", "older")
        for name, least in (("old", 1), ("older", last), ("new", 0)):
            goes_on(name, least)
        built = {name: mapped(rekindle, name) for name in ("old", "older", "new")}
        assert built["old"] == built["older"] != built["new"]
        rekindle("checkpoint", "old", "--to", "second", "--stop")
        rekindle("export", "second", tmp_path / "file")
        with Rekindle(binaries=binaries, **criu()) as elsewhere:
            elsewhere("import", tmp_path / "file")
            elsewhere.restore("second", "moved")
            goes_on("moved", 1, elsewhere)


def upgrade(library):
    """Another build, as the linker tells them apart."""
    notes = subprocess.run(["readelf", "-n", library], check=True, capture_output=True, text=True).stdout
    build = bytes.fromhex(re.search(r"Build ID: (\w+)", notes)[1])
    other = library.with_name("other")
    other.write_bytes(library.read_bytes().replace(build, build[::-1]))
    other.rename(library)


def mapped(rekindle, name):
    """The file that a program has mapped as the client."""
    maps = Path(f"/proc/{rekindle.sandbox(name)['pid']}/maps").read_text().splitlines()
    return next(line.split()[3:5] for line in maps if line.endswith("/lib/libcuda.so.1"))
