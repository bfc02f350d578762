"""`rekindle call`: functions, methods and workflows from the command line."""

import json
import os
import subprocess
import sys
import time

import pytest
from conftest import Deployer, begun

APP = """
import datetime
import numpy

class Odd(Exception):
    pass

@app.function()
def double(number, by=2):
    return by * number

@app.cls(concurrency=4, max_containers=1)
class Kinds:
    @rekindle.method()
    def same(self, *values):
        return list(values)

    @rekindle.method()
    def true(self):
        return "the method"

    @rekindle.method()
    def many(self):
        return {"array": numpy.arange(6, dtype="float32").reshape(2, 3), "pair": (1, None), "set": {2, 1}, 3: datetime.datetime(2030, 1, 31)}

    @rekindle.method()
    def raw(self):
        return [1, {"it": b"bytes"}]

    @rekindle.method()
    def large(self):
        return numpy.zeros((1000, 100))

    @rekindle.method()
    def endless(self):
        return [float("nan")]

    @rekindle.method()
    def odd(self):
        raise Odd("not known elsewhere")

    @rekindle.method()
    def fail(self, what):
        raise ValueError(f"{what} is not wanted")

    @rekindle.method()
    def wait(self, mark):
        Path(mark + ".held").touch()
        while not os.path.exists(mark + ".go"):
            time.sleep(0.01)

flow = app.workflow("flow")
flow.step(double, flow.step(double))

failing = app.workflow("failing")
failing.step(double, failing.step(Kinds().fail, name="the wrong one"))
"""


@pytest.fixture(scope="module")
def deployer():
    with begun() as instance:
        one = Deployer(instance)
        one.app("cli", APP)
        yield one


@pytest.fixture
def call(deployer):
    def run(*words, given=None, **environment):
        command = [deployer.rekindle.command, "call", "--python", sys.executable, *words]
        done = subprocess.run(command, env=os.environ | environment, input=given, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_result_is_printed_as_json(call):
    assert call("cli-double", "21") == (0, "42\n", "")
    assert call("cli-double", "double", "-1.5", "4") == (0, "-6.0\n", "")
    assert call("cli-flow", "10") == (0, "40\n", "")
    assert call("cli-double", "-", given="[1, 2]\n") == (0, "[1, 2, 1, 2]\n", "")
    assert call("cli-Kinds", "same", '"ä"', "-", "null", given='{"a": [true]}') == (0, '["ä", {"a": [true]}, null]\n', "")
    assert call("cli-Kinds", "true") == (0, '"the method"\n', "")
    code, out, _ = call("cli-Kinds", "many", "--json")
    assert code == 0
    assert json.loads(out) == {"result": {"array": [[0, 1, 2], [3, 4, 5]], "pair": [1, None], "set": [1, 2], "3": "2030-01-31T00:00:00"}}


def test_what_is_no_json_is_said_in_a_sentence(call):
    code, out, said = call("cli-Kinds", "raw")
    assert (code, out) == (1, "") and "the result[1]['it'] is of type bytes, which JSON has not" in said
    code, out, said = call("cli-Kinds", "large")
    assert (code, out) == (1, "") and "an array of 100000 elements" in said
    code, out, said = call("cli-Kinds", "endless")
    assert (code, out) == (1, "") and "infinite or none" in said and said.startswith("rekindle: ")


def test_what_is_raised_has_its_traceback_before_the_sentence(call):
    code, out, said = call("cli-Kinds", "fail", '"it"')
    lines = said.splitlines()
    assert (code, out, lines[-1]) == (1, "", "rekindle: cli-Kinds raised ValueError: it is not wanted")
    assert lines[0] == "Traceback (most recent call last):" and "in fail" in said
    code, out, said = call("cli-Kinds", "odd")
    assert code == 1 and said.splitlines()[-1].endswith("Odd: not known elsewhere") and "raised RemoteError" not in said
    code, out, said = call("cli-failing", '"it"', "--json")
    answer = json.loads(out)
    assert code == 1 and answer["error"] == "cli-failing raised ValueError: it is not wanted in the step 'the wrong one' of a workflow"
    assert answer["traceback"].startswith("Traceback")


def test_what_cannot_be_called_is_refused(call):
    for words, expected in (
        (("cli-none",), "nothing is deployed as 'none' of the app 'cli'"),
        (("cli-Kinds", "1"), "has the methods same, true, many, raw, large, endless, odd, fail, wait; say before the arguments which is called"),
        (("cli-Kinds", "other"), "'other' is neither JSON nor a method of cli-Kinds"),
        (("cli-Kinds", "same", "text"), "'text' is no argument in JSON"),
        (("cli-double", "-"), "standard input is no argument in JSON"),
    ):
        code, out, said = call(*words, given="no JSON")
        assert (code, out) == (1, "") and expected in said, said
        assert said.startswith("rekindle: ") and said.count("\n") == 1


def test_nobody_waits_longer_than_asked(call, deployer):
    begun = time.monotonic()
    code, out, said = call("cli-Kinds", "wait", json.dumps(deployer.mark("wait")), "--timeout", "1")
    assert (code, out) == (1, "") and "gave no result within 1 s" in said and time.monotonic() - begun < 30
    deployer.held("wait")
    deployer.let_go("wait")


def test_tokens_are_shown_and_tenants_meant(call, deployer):
    token = deployer.rekindle.json("tenant", "create", "blue")["token"]["token"]
    file = deployer.write("own", "@app.function()\ndef double(number):\n    return 2 * number\n")
    deployer.rekindle("deploy", file, "--python", sys.executable, "--tenant", "blue")
    assert call("own-double", "1", "--token", token) == (0, "2\n", "")
    assert call("own-double", "1", "--tenant", "blue", REKINDLE_TOKEN=token) == (0, "2\n", "")
    code, _, said = call("own-double", "1")
    assert code == 1 and "token" in said
    code, _, said = call("own-double", "1", "--tenant", "none", "--token", token)
    assert code == 1 and "nothing is deployed" in said
