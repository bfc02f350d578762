"""Whom a program runs as, where, with which variables, and how much it may use: over checkpoint and restore."""

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rekindle import BINARIES, PATIENCE, CommandError, Rekindle, criu

PERSON = Path(__file__).parent / "setting" / "person.py"


def start(rekindle, name, *options, command=None):
    """Runs the program; what it says of itself."""
    command = command or [sys.executable, PERSON, rekindle.root / "wish"]
    rekindle("run", "-d", "--name", name, "--gpu", rekindle.gpu, *options, "--", *command)
    return json.loads(rekindle.wait_lines(name, 1)[0])


def fails(rekindle, *arguments):
    with pytest.raises(CommandError) as error:
        rekindle(*arguments)
    return error.value


def is_taken_and_brought_back(rekindle, name):
    rekindle("checkpoint", name, "--to", "image", "--stop")
    rekindle("restore", "image", "-d")
    (rekindle.root / "wish").write_text("10")
    assert rekindle.wait_lines(name, 1) == ["10"]


@pytest.fixture
def open_to_all():
    """A Rekindle, and a program for it, that every user of the machine can read."""
    with Rekindle(**criu()) as rekindle:
        binaries = rekindle.root / "binaries"
        binaries.mkdir()
        for name in ("rekindle", "rekindled", "libcuda.so"):
            shutil.copy(BINARIES / name, binaries)
        rekindle.command = str(binaries / "rekindle")
        rekindle.person = rekindle.root / "person"
        subprocess.run(["cc", "-o", rekindle.person, PERSON.with_suffix(".c")], check=True)
        rekindle.root.chmod(0o755)
        yield rekindle


def test_a_program_runs_as_the_user_that_is_asked_for(open_to_all):
    rekindle, person = open_to_all, [open_to_all.person, open_to_all.root / "wish"]
    said = start(rekindle, "number", "--user", "4242424:77", command=person)
    assert said["ids"] == [4242424, 77] and said["groups"] == [77] and said["cuda"] == 0
    nobody = pwd.getpwnam("nobody")
    said = start(rekindle, "nobody", "--user", "nobody", "-e", "USER=me", "--workdir", "/usr", command=person)
    assert said["ids"] == [nobody.pw_uid, nobody.pw_gid] and said["cuda"] == 0
    assert (said["HOME"], said["USER"]) == (nobody.pw_dir, "me")
    is_taken_and_brought_back(rekindle, "nobody")
    uid = Path(f"/proc/{rekindle.sandbox('nobody')['pid']}").stat().st_uid
    assert uid == nobody.pw_uid


def test_a_user_need_not_be_able_to_read_the_installation(open_to_all):
    rekindle = open_to_all
    (rekindle.root / "binaries").chmod(0o700)
    said = start(rekindle, "apart", "--user", "4242424", command=[rekindle.person, rekindle.root / "wish"])
    assert said["ids"][0] == 4242424 and said["cuda"] == 0


def test_directory_and_variables_are_as_given(rekindle):
    here = rekindle.root / "here"
    (here / "deeper").mkdir(parents=True)
    said = start(rekindle, "set", "--workdir", here, "--env", "ANSWER=a=b", "--env", "USER=me")
    assert (said["cwd"], said["ANSWER"], said["USER"]) == (str(here), "a=b", "me")
    assert said["HOME"] == os.environ.get("HOME")
    is_taken_and_brought_back(rekindle, "set")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--user", "no such user"], "there is no user"),
        (["--user", "0:no such group"], "there is no group"),
        (["--env", "ANSWER"], "NAME=VALUE"),
        (["--memory", "1M"], "at least 16M"),
        (["--memory", "much"], "much"),
        (["--cpus", "0"], "number of processors"),
        (["--user", "0", "--from", "image"], "--from"),
    ],
)
def test_what_makes_no_sense_is_refused(rekindle, options, word):
    refusal = fails(rekindle, "run", "-d", *options, "--", "true")
    assert refusal.code == 2 and word in refusal.message


def test_a_directory_that_is_not_there_is_refused(rekindle):
    refusal = fails(rekindle, "run", "-d", "--workdir", "not/there", "--", "true")
    assert "not/there does not exist" in refusal.message
    assert rekindle.sandboxes() == []


@pytest.fixture
def limited(rekindle):
    """A Rekindle on a machine that lets it limit programs."""
    try:
        rekindle("run", "--memory", "64M", "--cpus", "0.5", "--", "true")
    except CommandError as error:
        assert "cannot be limited here" in error.message
        pytest.skip(error.message)
    return rekindle


def places(pid):
    """The control groups that limit a process, as directories, by what they control."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    first = {name: Path("/sys/fs/cgroup", name, path.lstrip("/")) for _, names, path in lines for name in names.split(",") if name}
    second = [Path("/sys/fs/cgroup", path.lstrip("/")) for number, _, path in lines if number == "0"]
    return {name: first.get(name) or second[0] for name in ("memory", "cpu")}


def quota(pid):
    """How much of the processors a process may have, microseconds in a tenth of a second."""
    place = places(pid)["cpu"]
    first = place / "cpu.cfs_quota_us"
    return int(first.read_text() if first.exists() else (place / "cpu.max").read_text().split()[0])


def test_a_program_that_takes_more_memory_than_it_may_is_ended_and_that_is_said(limited):
    start(limited, "modest", "--memory", "256M")
    assert limited.sandbox("modest")["limits"] == {"memory": 256 << 20, "processors": None}
    is_taken_and_brought_back(limited, "modest")
    # Before the restore and after it.
    assert limited.sandbox("modest")["limits"]["memory"] == 256 << 20
    limited("shutdown")
    (limited.root / "wish").write_text(str(1 << 30))
    assert limited.wait_end("modest") == ["10"]
    row = limited.sandbox("modest")
    assert row["state"] == "killed" and "limit of memory" in row["problem"]


def test_a_program_has_no_more_of_the_processors_than_it_may(limited):
    start(limited, "half", "--cpus", "0.5")
    assert quota(limited.sandbox("half")["pid"]) == 50_000
    is_taken_and_brought_back(limited, "half")
    assert quota(limited.sandbox("half")["pid"]) == 50_000
    limited("checkpoint", "half", "--to", "later", "--stop")
    limited("restore", "later", "-d", "--cpus", "1.5")
    assert quota(limited.sandbox("half")["pid"]) == 150_000
    assert limited.sandbox("half")["limits"] == {"memory": None, "processors": 1500}


def test_nothing_is_left_of_groups(limited):
    start(limited, "modest", "--memory", "256M", "--cpus", "1")
    own = places(limited.sandbox("modest")["pid"]).values()
    assert all("rekindle" in str(place) and place.is_dir() for place in own)
    limited("kill", "modest")
    assert not any(place.exists() for place in own)


def test_where_nothing_can_be_limited_that_is_said(rekindle):
    # A daemon that finds something else in the place of control groups, as in many containers.
    program = f"mount -t tmpfs none /sys/fs/cgroup && exec {BINARIES}/rekindled"
    log = (rekindle.root / "log").open("wb")
    served = subprocess.Popen(["unshare", "--mount", "sh", "-c", program], env=rekindle.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        rekindle.wait((rekindle.root / "socket").exists, "the daemon")
        refusal = fails(rekindle, "run", "-d", "--memory", "64M", "--", "true").message
        assert "cannot be limited here" in refusal and "--memory" in refusal
        assert rekindle.sandboxes() == []
    finally:
        rekindle("shutdown")
        served.wait(PATIENCE)
