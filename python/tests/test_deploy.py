"""Deployments: again and again, of files that are wrong, and of what is no function."""

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import rekindle as package
from conftest import ROOT
from harness import PATIENCE, CommandError

VERSION = """
@app.cls(gpu="emulated", concurrency=2, max_containers=2)
class Model:
    @rekindle.method()
    def version(self):
        return {version}
"""


def own_images(rekindle):
    return [row["name"] for row in rekindle.json("images")["images"]]


def left(rekindle):
    """Sandboxes that run, and services."""
    running = [row["name"] for row in rekindle.sandboxes() if row["pid"]]
    return running, [row["name"] for row in rekindle.json("services")["services"]], own_images(rekindle)


class Load:
    """Calls without a pause, until it is told to stop."""

    def __init__(self, function, callers=3):
        self.function, self.answers, self.failures, self.goes_on = function, [], [], True
        self.threads = [threading.Thread(target=self.call) for _ in range(callers)]

    def call(self):
        try:
            while self.goes_on:
                self.answers.append(self.function.remote())
        except Exception as error:
            self.failures.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.goes_on = False
        for thread in self.threads:
            thread.join(PATIENCE)


def test_a_new_version_takes_over_while_calls_are_under_way(rekindle, deploy):
    first = deploy.app("versions", VERSION.format(version=1) + "\n@app.function(gpu='emulated')\ndef old():\n    return 'old'\n")
    assert [row["service"] for row in first["services"]] == ["versions-Model", "versions-old"] and first["removed"] == []
    version = package.Cls.from_name("versions", "Model")().version
    with Load(version) as load:
        reached = lambda wanted: rekindle.wait(lambda: load.failures or load.answers.count(wanted) > 20, f"answers of version {wanted}")
        reached(1)
        # One that does not get ready changes nothing.
        broken = deploy.write(
            "versions",
            VERSION.format(version=2).replace(
                "@rekindle.method()", "@rekindle.enter()\n    def load(self):\n        1 / 0\n\n    @rekindle.method()"
            ),
        )
        with pytest.raises(CommandError, match="ZeroDivisionError"):
            deploy(broken)
        second = deploy.app("versions", VERSION.format(version=2))
        reached(2)
    assert load.failures == []
    assert second["removed"] == ["versions-old"]
    assert second["services"][0]["port"] == first["services"][0]["port"]
    # The order in which threads note answers is not that of the answers.
    assert set(load.answers) == {1, 2} and version.remote() == 2
    deploy.app("versions", VERSION.format(version=7))
    # As large as before, and perhaps written in the same second.
    deploy.app("versions", VERSION.format(version=8))
    assert version.remote() == 8
    # Images of earlier versions go once nobody runs from them.
    deploy.app("versions", VERSION.format(version=3))
    rekindle.wait(lambda: all(row["image"] != second["services"][0]["image"] for row in rekindle.json("ps")["sandboxes"]), "old instances to end")
    last = deploy.app("versions", VERSION.format(version=4))
    images = own_images(rekindle)
    assert last["services"][0]["image"] in images and second["services"][0]["image"] not in images and len(images) <= 2


ONE = "\n@app.function(gpu='emulated')\ndef one():\n    return 1\n"
ENTER = "\n@app.cls(gpu='emulated', {options})\nclass Model:\n    @rekindle.enter({when})\n    def load(self):\n        {does}\n    @rekindle.method()\n    def work(self):\n        pass\n"
WRONG = {
    "no app": ("del app", r"wrong\.py has no app; write"),
    "nothing to serve": ("", "'wrong' of .*wrong.py has nothing to serve"),
    "two apps": ("other = rekindle.App('other')" + ONE, "has 2 apps, 'wrong' and 'other'; keep one"),
    "syntax": ("def", "wrong.py cannot be loaded: SyntaxError"),
    "raises": ("raise ValueError('no luck')", "wrong.py cannot be loaded: ValueError: no luck"),
    "quits": ("raise SystemExit(0)", "wrong.py cannot be loaded: SystemExit: 0"),
    "option": ("@app.function(gpus=1)\ndef one():\n    pass", "one: there is no option 'gpus'; there are gpu, mode, share"),
    "number": ("@app.function(concurrency=0)\ndef one():\n    pass", "concurrency is 0; give a whole number, 1 or more"),
    "no time": ("@app.function(timeout=0)\ndef one():\n    pass", "timeout is 0, in which nothing can be done"),
    "time": ("@app.function(timeout='1s')\ndef one():\n    pass", "timeout is '1s'; give a number of seconds"),
    "no method": ("@app.cls()\nclass Model:\n    pass", "Model: there is nothing to call"),
    "parameters": (
        "@app.cls()\nclass Model:\n    def __init__(self, size):\n        pass\n    @rekindle.method()\n    def work(self):\n        pass",
        "__init__ takes size, which nobody gives",
    ),
    "batch": (
        "@app.function(concurrency=2)\n@rekindle.batched(max_batch_size=3, wait_ms=1)\ndef one(x):\n    return x",
        "no batch of 3 comes together",
    ),
    "enter": (ENTER.format(options="", when="", does="raise OSError('no weights')"), "Model of .*wrong.py did not get ready: OSError: no weights"),
    "exits": (ENTER.format(options="", when="", does="os._exit(7)"), "wrong-Model ended before it was ready"),
    "slow": (
        ENTER.format(options="startup_timeout=0.5", when="", does="time.sleep(1000)"),
        r"wrong-Model was not ready after 0\.5 s; raise `startup_timeout`",
    ),
    "instance": (ENTER.format(options="", when="restored=True", does="raise OSError('no network')"), "exit code 1.* before it listened"),
    "ASGI": (
        "@app.function(gpu='emulated')\n@rekindle.asgi_app()\ndef web():\n    raise KeyError('no route')",
        "did not get ready: KeyError: 'no route'",
    ),
    "base": ("@app.function(gpu='emulated', base='absent')\ndef one():\n    pass", "absent"),
}


def test_what_is_wrong_is_one_sentence_and_leaves_nothing_behind(rekindle, deploy):
    for case, (source, sentence) in WRONG.items():
        with pytest.raises(CommandError, match=sentence) as failed:
            deploy(deploy.write("wrong", source))
        assert failed.value.code == 1, case
        assert failed.value.message.splitlines()[-1].startswith("rekindle: "), case
        assert left(rekindle) == ([], [], []), case
    for file, sentence in ((deploy.directory / "absent.py", "there is no file"), (deploy.directory, "there is no file")):
        with pytest.raises(CommandError, match=sentence):
            deploy(file)
    (deploy.directory / "json.py").write_text("")
    with pytest.raises(CommandError, match="name of the module 'json'"):
        deploy(deploy.directory / "json.py")
    bare = subprocess.run([sys.executable, "-m", "venv", "--without-pip", rekindle.root / "bare"], check=True)
    assert bare.returncode == 0
    with pytest.raises(CommandError, match="package rekindle is not installed for .*bare.*pip install"):
        rekindle("deploy", deploy.write("wrong", ONE), "--python", rekindle.root / "bare/bin/python")
    (site,) = (rekindle.root / "bare/lib").rglob("site-packages")
    (site / "rekindle.py").touch()
    with pytest.raises(CommandError, match="package rekindle lacks 'rekindle.deploying' in .*bare"):
        rekindle("deploy", deploy.write("wrong", ONE), "--python", rekindle.root / "bare/bin/python")
    with pytest.raises(CommandError, match='interpreter "nowhere" cannot be started'):
        rekindle("deploy", deploy.write("wrong", ONE), "--python", "nowhere")


def test_user_code_that_fails_is_shown_with_its_traceback(rekindle, deploy):
    file = deploy.write("wrong", ENTER.format(options="", when="", does="self.missing.load()"))
    with pytest.raises(CommandError) as failed:
        deploy(file)
    assert 'wrong.py", line' in failed.value.message and "self.missing.load()" in failed.value.message
    assert failed.value.message.splitlines()[-1].count("rekindle:") == 1


def test_one_that_is_interrupted_takes_back_what_it_did(rekindle, deploy):
    file = deploy.write("held", ENTER.format(options="", when="", does=f"Path({deploy.mark('a')!r} + '.held').touch(); time.sleep(1000)"))
    command = rekindle.begin("deploy", file, "--python", sys.executable)
    deploy.held("a")
    command.process.send_signal(signal.SIGTERM)
    with pytest.raises(CommandError) as failed:
        command.end()
    assert failed.value.code == 128 + signal.SIGTERM
    assert left(rekindle) == ([], [], [])


def ask(row, path):
    connection = http.client.HTTPConnection("127.0.0.1", row["port"], timeout=PATIENCE)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_an_asgi_application_is_served_as_it_is(rekindle, deploy):
    (row,) = deploy.app(
        "web",
        """
@app.cls(gpu="emulated", concurrency=4)
class Site:
    @rekindle.enter()
    def load(self):
        self.greeting = "hello"

    @rekindle.enter(restored=True)
    def restored(self):
        self.greeting += " again"

    @rekindle.asgi_app()
    def web(self):
        async def application(scope, receive, send):
            if scope["type"] == "lifespan":
                while True:
                    message = await receive()
                    await send({"type": message["type"] + ".complete"})
                    if message["type"] == "lifespan.shutdown":
                        return
            await send({"type": "http.response.start", "status": 203, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": f"{self.greeting}, {scope['path']}".encode()})
        return application

    @rekindle.method()
    def length(self):
        return len(self.greeting)

    @rekindle.exit()
    def leave(self):
        print("left", self.greeting, flush=True)
""",
    )["services"]
    assert row["call"] == "HTTP"
    assert ask(row, "/a/b?c=d") == (203, b"hello again, /a/b")
    assert package.Cls.from_name("web", "Site", url=f"http://127.0.0.1:{row['port']}")().length.remote() == len("hello again")
    with pytest.raises(package.Error, match="answered 203"):
        elsewhere = package.Function.from_name("web", "Site", url=f"http://127.0.0.1:{row['port']}")
        package.client.result("web-Site.x", elsewhere.client.connections.request("GET", "/"))
    rekindle("unserve", "web-Site")
    assert rekindle.lines("web-Site-1") == ["left hello again"]


def test_pieces_of_an_asgi_application_s_answer_do_not_wait_for_each_other(rekindle, deploy):
    (row,) = deploy.app(
        "pieces",
        """
import json, socket

def delays():
    \"\"\"Of each connection that there is, whether small pieces are held back.\"\"\"
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
            one.getpeername()
            found += [not one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)] if one.family == socket.AF_INET else []
        except OSError:
            continue
    return found

@app.function(gpu="emulated")
@rekindle.asgi_app()
def web():
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(delays()).encode()})
    return application
""",
    )["services"]
    status, said = ask(row, "/")
    assert status == 200 and json.loads(said) and not any(json.loads(said))


def test_an_app_starts_from_a_framework_image_that_fits(rekindle, deploy):
    rekindle("image", "framework", "numpy", "--gpu", rekindle.gpu, "--python", sys.executable, "--import", "numpy", "--import", "colorsys")
    source = "@app.function(gpu='emulated'{option})\ndef modules():\n    import sys\n    return 'colorsys' in sys.modules, sys.argv[0].endswith('__main__.py')\n"
    for option, expected in (
        ("", True),
        (", share=False", True),
        (", base='numpy'", True),
        (", share='us', base='numpy'", True),
        (", base=''", False),
    ):
        deploy.app("based", source.format(option=option))
        assert package.Function.from_name("based", "modules").remote() == (expected, True)


@pytest.fixture
def cupy(rekindle):
    """A package that tells where it was imported; what its source says besides."""
    place = rekindle.root / "installed/cupy"
    place.mkdir(parents=True)
    paths = [str(place.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    rekindle.environment["PYTHONPATH"] = os.pathsep.join(paths)

    def write(rest=""):
        (place / "__init__.py").write_text(f"import os\nAHEAD = 'REKINDLE_FRAMEWORK' in os.environ\n{rest}")

    write()
    return write


def deployed(rekindle, file, *options):
    """What a deployment says beside its document."""
    command = [rekindle.command, "deploy", str(file), "--python", sys.executable, *options]
    done = subprocess.run(command, env=rekindle.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return done.stderr


AHEAD = "@app.function(gpu='emulated'{option})\ndef ahead():\n    import cupy\n    return cupy.AHEAD\n"


def test_a_framework_that_an_app_imports_is_made_an_image_once(rekindle, deploy, cupy):
    made = lambda: [name for name in own_images(rekindle) if name.startswith("framework ")]
    ahead = lambda app: package.Function.from_name(app, "ahead").remote()
    first, second = (deploy.write(name, AHEAD.format(option=", share=False")) for name in ("first", "second"))
    assert "making the framework image" not in deployed(rekindle, first, "--no-base") and not made() and not ahead("first")
    said = deployed(rekindle, first)
    (image,) = made()
    assert f"making the framework image '{image}'" in said and f"made the framework image '{image}' in " in said
    assert image.startswith("framework cupy ") and ahead("first")
    # Later deployments, and other apps, have it.
    for file in (first, second):
        assert "framework image" not in deployed(rekindle, file)
    assert ahead("first") and ahead("second") and made() == [image]
    # Who says so has none.
    deployed(rekindle, deploy.write("second", AHEAD.format(option=", share=False, base=''")))
    assert not ahead("second") and made() == [image]
    # Those whose contexts are shared have one that has used no GPU.
    for option, says in ((", share='team'", True), ("", False)):
        assert ("making the framework image" in deployed(rekindle, deploy.write("second", AHEAD.format(option=option)))) == says
        assert ahead("second") and len(made()) == 2
    (shared,) = (name for name in made() if name != image)
    assert rekindle.json("inspect", shared)["gpus"] == []
    # What a user has made goes before it.
    rekindle("image", "framework", "own", "--gpu", rekindle.gpu, "--python", sys.executable, "--import", "colorsys")
    deployed(rekindle, first)
    assert not ahead("first")
    rekindle("rmi", "own")
    # Installed anew, it is another one.
    cupy("VERSION = 2\n")
    assert "making the framework image" in deployed(rekindle, first) and len(made()) == 3 and ahead("first")


def test_a_framework_image_that_cannot_be_made_is_done_without(rekindle, deploy, cupy):
    cupy("if AHEAD:\n    raise RuntimeError('no GPU')\n")
    said = deployed(rekindle, deploy.write("alone", AHEAD.format(option=", share=False")))
    assert "warning: the framework image 'framework cupy " in said and "the app starts without one" in said
    assert not package.Function.from_name("alone", "ahead").remote()
    assert not [name for name in own_images(rekindle) if name.startswith("framework ")]


def test_what_changes_is_deployed_again(rekindle, deploy):
    helper = deploy.directory / "helper.py"

    def write(source):
        """Nobody finds a part of it."""
        helper.with_suffix(".new").write_text(source)
        helper.with_suffix(".new").rename(helper)

    write("VERSION = 1\n")
    file = deploy.write("changing", "import helper\n" + VERSION.format(version="helper.VERSION"))
    log = rekindle.root / "dev.log"
    with log.open("w") as output:
        command = [rekindle.command, "dev", str(file), "--python", sys.executable]
        program = subprocess.Popen(command, env=rekindle.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    try:
        done = lambda count: rekindle.wait(
            lambda: log.read_text().count("is served at") == count or program.poll() is not None, f"{count} deployments"
        )
        done(1)
        version = package.Cls.from_name("changing", "Model")().version
        assert version.remote() == 1
        write("VERSION = 1 +\n")
        rekindle.wait(lambda: "SyntaxError" in log.read_text(), "what is wrong")
        write("VERSION = 200\n")
        done(2)
        assert version.remote() == 200
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 130
    finally:
        program.kill()
        program.wait()
    assert version.remote() == 200


def test_sandboxes_are_objects_too(rekindle):
    script = "import os, time; print('up', flush=True); [time.sleep(0.01) for _ in iter(lambda: os.path.exists(os.environ['GO']), True)]; raise SystemExit(4)"
    go = rekindle.root / "go"
    with pytest.raises(package.CommandError, match="absent-program"):
        package.run("absent-program")
    sandbox = package.run(sys.executable, "-c", script, name="one", gpu="emulated", env={"GO": str(go)})
    rekindle.wait(lambda: sandbox.logs() == "up\n", "its line")
    report = package.checkpoint(sandbox, "image")
    assert report["image"] == "image" and sandbox.info()["state"] == "running"
    again = package.restore("image", name="two")
    assert again.info()["image"] == "image"
    sandbox.kill()
    Path(go).touch()
    assert again.wait() == 4
    assert sandbox.info()["pid"] == 0
    again.remove()
    with pytest.raises(package.CommandError, match="no sandbox is called 'two'"):
        again.info()


def test_sandboxes_in_an_event_loop(rekindle):
    import asyncio

    async def both():
        one, two = await asyncio.gather(*(package.run.aio("sleep", "1000", name=name, gpu="emulated") for name in ("one", "two")))
        await asyncio.gather(one.kill.aio(), two.kill.aio())
        return await asyncio.gather(one.wait.aio(), two.wait.aio())

    assert asyncio.run(both()) == [143, 143]


def test_the_example_is_called_as_it_says(rekindle, deploy):
    deploy(ROOT / "examples/02_function.py")
    said = subprocess.run([sys.executable, ROOT / "examples/02_function.py"], check=True, capture_output=True, text=True).stdout.splitlines()
    # The plane is the same above and below the real axis, which is in the set on the left.
    assert len(said) == 16 and said[1:8] == said[15:8:-1] and said[8].startswith(" @@@")


def test_json_is_one_document_whatever_user_code_prints(rekindle, deploy):
    said = rekindle("deploy", deploy.write("loud", "print('loading')\n" + ONE), "--python", sys.executable, "--json")
    assert json.loads(said)["services"][0]["call"] == 'rekindle.Function.from_name("loud", "one").remote(...)'
    text = rekindle("deploy", deploy.write("loud", ONE), "--python", sys.executable)
    assert text.startswith("loud-one is served at http://127.0.0.1:")
    assert list(itertools.islice(package.Function.from_name("loud", "one").map(*[[]]), 1)) == []


def test_temporary_files_may_lie_where_a_sandbox_has_files_of_its_own(rekindle, deploy):
    rekindle.environment["TMPDIR"] = "/dev/shm"
    assert deploy.app("apart", ONE)["services"][0]["name"] == "one"
