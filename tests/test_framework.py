"""Framework images: an app that starts from one is as after a start of its own, and its image is small."""

import json
import sys
from pathlib import Path

import pytest
from rekindle import CommandError
from test_sharing import FEATURES, OWNER

APP = """
import hashlib, os, sys
import numpy
import helper
generator = numpy.random.default_rng(7)
kept = generator.integers(0, 255, 300_000, dtype=numpy.uint8)
print("app", sys.argv, os.getcwd(), os.environ.get("WHAT"), __name__, os.path.basename(__file__), helper.VALUE, flush=True)
for turn in range(1, 100):
    while not os.path.exists(f"{sys.argv[1]}/{turn}"):
        __import__("time").sleep(0.005)
    kept += generator.integers(0, 9, len(kept), dtype=numpy.uint8)
    print(turn, hashlib.sha256(kept).hexdigest(), flush=True)
"""

SHELL = """
echo getting ready
: > "$REKINDLE_FRAMEWORK/ready"
read -r app < "$REKINDLE_FRAMEWORK/app"
echo "$app"
exit 7
"""


@pytest.fixture
def app(rekindle):
    directory = rekindle.root / "app"
    directory.mkdir()
    (directory / "helper.py").write_text("VALUE = 5\n")
    script = directory / "app.py"
    script.write_text(APP)
    return script


def make(rekindle, name, *options):
    return json.loads(rekindle("--json", "image", "framework", name, "--gpu", rekindle.gpu, *options))


def start(rekindle, name, framework, *command):
    return json.loads(rekindle("--json", "run", "-d", "--name", name, "--from", framework, "--", *command))


def own_bytes(rekindle, image):
    row = next(row for row in rekindle.json("images")["images"] if row["name"] == image)
    return row["sizes"]["stored"] - row["shared_bytes"], row["sizes"]["stored"]


def test_an_app_from_a_framework_image_is_the_app(rekindle, app):
    rekindle.environment["WHAT"] = "before"
    make(rekindle, "numpy", "--python", sys.executable)
    assert not rekindle.sandboxes()
    assert rekindle.json("inspect", "numpy")["framework"]
    rekindle.environment["WHAT"] = "now"
    turns = rekindle.root / "turns"
    turns.mkdir()
    rekindle.run("plain", sys.executable, app, turns, "--option")
    shown = start(rekindle, "a", "numpy", sys.executable, app, turns, "--option")
    assert shown["command"][1:] == [str(app), str(turns), "--option"] and shown["image"] == "numpy"
    start(rekindle, "b", "numpy", app, turns, "--option")
    (turns / "1").touch()
    expected, own = rekindle.wait_lines("plain", 2), {}
    assert "now" in expected[0] and "'--option'" in expected[0] and "__main__ app.py 5" in expected[0]
    for name in "ab":
        assert rekindle.wait_lines(name, 2) == expected
        rekindle("checkpoint", name, "--to", f"app {name}", "--stop")
        own[name], _ = own_bytes(rekindle, f"app {name}")
        assert not rekindle.json("inspect", f"app {name}")["framework"]
    rekindle("checkpoint", "plain", "--to", "app alone", "--leave-running")
    alone, _ = own_bytes(rekindle, "app alone")
    assert max(own.values()) < 0.6 * alone, (own, alone)
    with pytest.raises(CommandError, match="app a.*image framework"):
        start(rekindle, "c", "app a", app)
    # Each image stands for itself.
    rekindle("rmi", "numpy")
    assert rekindle.json("verify", "app a")["sound"]
    rekindle.restore("app a", "again")
    rekindle("rmi", "app a")
    rekindle.restore("app b", "and again")
    (turns / "2").touch()
    expected = rekindle.wait_lines("plain", 3)[2:]
    assert rekindle.wait_lines("again", 1) == rekindle.wait_lines("and again", 1) == expected


def test_many_apps_run_at_once_from_one_image(rekindle):
    make(rekindle, "python", "--python", sys.executable, "--import", "json")
    for n in range(4):
        start(rekindle, f"app {n}", "python", "-c", f"import random, sys; print({n}, sys.argv[1:], 'numpy' in sys.modules)", n)
    for n in range(4):
        assert rekindle.wait_end(f"app {n}") == [f"{n} ['{n}'] False"]


def test_words_before_the_script(rekindle, app):
    make(rekindle, "python", "--python", sys.executable, "--import", "json")

    def ended(*command):
        start(rekindle, "app", "python", *command)
        lines = rekindle.wait_end("app")
        return rekindle.sandbox("app")["exit_code"], lines

    assert ended("-m", "json.tool", "--help")[0] == 0
    assert ended(sys.executable, "-u", "-c", "import sys; sys.exit(3)")[0] == 3
    code, lines = ended("-c", "def f():\n    return 1 / 0\nf()")
    assert code == 1 and lines[-1] == "ZeroDivisionError: division by zero"
    assert not any("framework" in line for line in lines)
    for command, reason in (
        (["-X", "dev", app], "'-X'"),
        ([sys.executable], "no script"),
        (["/nonexistent/python3", app], "not the interpreter"),
        (["missing.py"], "missing.py"),
    ):
        code, lines = ended(*command)
        assert code == 2 and reason in lines[0] and len(lines) == 1, (command, lines)


def test_apps_share_contexts_where_their_framework_has_left_the_gpu_alone(rekindle):
    go, program = rekindle.root / "go", [sys.executable, "-c", OWNER, FEATURES, rekindle.root / "go"]
    run = lambda name, framework: rekindle("run", "-d", "--name", name, "--gpu", rekindle.gpu, "--share", "us", "--from", framework, "--", *program)
    make(rekindle, "imports", "--python", sys.executable, "--import", "numpy", "--no-gpu")
    assert rekindle.json("inspect", "imports")["gpus"] == []
    for name in "ab":
        run(name, "imports")
        assert rekindle.wait_lines(name, 1)
    (of_a, of_b) = (rekindle.sandbox(name) for name in "ab")
    assert of_a["workers"] == of_b["workers"] and (of_a["tenant"], of_a["image"]) == ("us", "imports")
    rekindle("checkpoint", "a", "--to", "app", "--stop")
    rekindle("restore", "app", "--name", "again", "--gpu", rekindle.gpu, "--share", "us", "-d")
    assert rekindle.sandbox("again")["workers"] == of_b["workers"]
    go.touch()
    for name in ("again", "b"):
        assert rekindle.wait_end(name)[-2:] == ["{7} {7}", "[8, 7]"], name
    # Who has used a GPU keeps to addresses that others may have.
    warm = rekindle.root / "warm.py"
    warm.write_text(f"import sys\nsys.path.insert(0, {str(FEATURES)!r})\nfrom gpu import open_device\nopen_device()\n")
    make(rekindle, "warm", "--python", sys.executable, "--import", "numpy", "--warm", warm)
    with pytest.raises(CommandError, match="'warm' cannot share|\"warm\" cannot share"):
        run("c", "warm")


def test_gpu_work_before_and_after(rekindle):
    warm = rekindle.root / "warm.py"
    turn = rekindle.root / "turn"
    program = f"""
import os, time
from numba import cuda
import numpy
@cuda.jit
def add(x, by):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += by
x = cuda.to_device(numpy.arange(100000, dtype=numpy.float32))
add[400, 256](x, 1)
print(x.copy_to_host().sum(), flush=True)
while not os.path.exists({str(turn)!r}):
    time.sleep(0.005)
add[400, 256](x, 2)
print(x.copy_to_host().sum(), flush=True)
"""
    warm.write_text(
        "from numba import cuda\nimport numpy\n"
        "@cuda.jit\ndef warm(x):\n    x[cuda.grid(1)] = 1\n"
        "x = cuda.to_device(numpy.zeros(256, dtype=numpy.float32))\nwarm[1, 256](x)\nassert x.copy_to_host().sum() == 256\n"
    )
    rekindle.environment["PYTHONWARNINGS"] = "ignore"
    make(rekindle, "cuda", "--python", sys.executable, "--import", "numba.cuda", "--warm", warm)
    start(rekindle, "app", "cuda", "-c", program)
    rekindle.run("plain", sys.executable, "-c", program)
    first = rekindle.wait_lines("plain", 1)
    assert rekindle.wait_lines("app", 1) == first
    rekindle("checkpoint", "app", "--to", "app", "--stop")
    own, whole = own_bytes(rekindle, "app")
    assert own < whole / 2, f"{own} of {whole}"
    rekindle("rmi", "cuda")
    rekindle.restore("app", "again")
    turn.touch()
    assert rekindle.wait_end("again") == rekindle.wait_end("plain")[1:]


def test_a_program_of_ones_own(rekindle):
    make(rekindle, "shell", "--", "sh", "-c", SHELL)
    start(rekindle, "app", "shell", "any", "words", "a b")
    line = rekindle.wait_end("app")
    assert rekindle.sandbox("app")["exit_code"] == 7
    assert '"argv":["any","words","a b"]' in line[0] and f'"directory":"{Path.cwd()}"' in line[0]


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--", "sh", "-c", "echo no; exit 5"], "ended with code 5 before"),
        (["--limit", "0.5", "--", "sleep", "infinity"], "not ready within 0.5 s"),
        (["--python", sys.executable, "--import", "no_such_module"], "ended with code 1"),
        (["--python", "/nonexistent"], "nonexistent"),
    ],
)
def test_a_program_that_does_not_get_ready_leaves_no_image(rekindle, options, reason):
    with pytest.raises(CommandError, match=reason):
        make(rekindle, "framework", *options)
    assert not rekindle.json("images")["images"]
    assert not any(row["pid"] for row in rekindle.sandboxes())


def test_a_program_that_does_not_read_is_ended(rekindle):
    make(rekindle, "deaf", "--", "sh", "-c", 'while :; do : > "$REKINDLE_FRAMEWORK/ready"; sleep 1; done')
    with pytest.raises(CommandError, match="does not open the pipe"):
        start(rekindle, "app", "deaf", "app")
    assert not any(row["pid"] for row in rekindle.sandboxes())


def test_a_name_that_is_taken_is_refused_at_once(rekindle):
    make(rekindle, "framework", "--", "sh", "-c", SHELL)
    with pytest.raises(CommandError, match="framework"):
        make(rekindle, "framework", "--", "sleep", "infinity")
    assert not rekindle.sandboxes()
