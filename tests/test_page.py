"""The daemon's page: what a browser shows of it, and who may have it."""

import contextlib
import html.parser
import http.client
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from rekindle import PATIENCE, ROOT, CommandError, Rekindle
from test_services import Web, begun

# What a name may be that is not to be taken for HTML.
STRANGE = "<img src=x onerror=alert(1)>&amp;"


def chromium():
    """A browser and what it needs, if there is one: the machine's, or what `scripts/chromium` has fetched."""
    tree = ROOT / ".build/chromium"
    if (tree / "complete").exists():
        needs = {"LD_LIBRARY_PATH": ":".join(sorted({str(path.parent) for path in tree.rglob("lib*.so*")}))}
        if (tree / "etc/fonts").is_dir():
            needs |= {"FONTCONFIG_PATH": str(tree / "etc/fonts"), "XDG_DATA_HOME": str(tree / "usr/share")}
        return tree / "usr/lib/chromium/chromium", needs
    found = shutil.which("chromium") or shutil.which("google-chrome")
    return (Path(found), {}) if found else None


@contextlib.contextmanager
def alone(files):
    """The address of a server that has these files and nothing else."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, headers, body = files.get(self.path, (502, {"Content-Type": "text/plain"}, "nobody is there"))
            self.send_response(status)
            self.send_header("Content-Type", headers["Content-Type"])
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def page():
    with begun(REKINDLE_PAGE_PORT="127.0.0.1:0", REKINDLE_PAGE_NAMES="gpu.example") as rekindle:
        yield Page(rekindle)


class Page:
    def __init__(self, rekindle):
        self.rekindle = rekindle
        self.address = rekindle("page").strip()
        self.port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/", self.address)[1])

    def ask(self, path="/", method="GET", host=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, headers={"Host": host or f"127.0.0.1:{self.port}"})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def state(self):
        status, headers, body = self.ask("/state.json")
        assert (status, headers["Content-Type"]) == (200, "application/json"), body
        return json.loads(body)

    def browse(self, tmp_path, *options):
        """What a browser says of the page after some seconds."""
        found = chromium()
        if found is None:
            pytest.skip("there is no chromium: scripts/chromium could not fetch it")
        program, needs = found
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command += [f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=4000", *options, self.address]
        done = subprocess.run(command, env={**os.environ, **needs}, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout


class Shown(html.parser.HTMLParser):
    """Texts of the elements by their classes and ids, and the attributes of all."""

    def __init__(self, source):
        super().__init__()
        self.open, self.texts, self.attributes, self.titles = [], {}, set(), []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.attributes.update(attributes)
        self.titles.append(attributes.get("title") or "")
        if tag not in ("meta", "link", "img"):
            self.open.append((tag, (attributes.get("class") or "").split() + [attributes.get("id") or ""]))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for name in {name for _, names in self.open for name in names}:
            self.texts[name] = self.texts.get(name, "") + data


def test_the_state_has_services_stages_memory_sandboxes_and_images(page):
    empty = page.state()
    assert (empty["services"], empty["sandboxes"], empty["images"], empty["problems"]) == ([], [], [], [])
    web = Web(page.rekindle, "--idle", "10ms", "--idle-end", "1h", "--max", 1)
    assert web.get()["count"] == 2
    web.come_to("asleep")
    page.rekindle.wait(lambda: [lane["steps"][-1]["stage"] for lane in page.state()["lanes"]] == ["asleep"], "a lane")
    state = page.state()
    (service,), (lane,), (gpu,) = state["services"], state["lanes"], state["gpus"]
    assert (service["name"], service["served"], service["tls"]) == ("web", 1, False)
    assert 0 < service["latency"]["p50_us"] <= service["latency"]["p99_us"] < PATIENCE * 10**6
    assert (lane["service"], lane["instance"], lane["gone_ms"]) == ("web", "web-1", None)
    stages = [step["stage"] for step in lane["steps"]]
    assert stages[:3] == ["waiting", "starting", "running"] and "falling-asleep" in stages
    times = [step["since_ms"] for step in lane["steps"]]
    assert times == sorted(times) and times[-1] <= state["now_ms"]
    assert gpu["gpu"] == "emulated" and gpu["total_bytes"] == 4 << 30
    assert gpu["free_bytes"] + sum(segment["bytes"] for segment in gpu["segments"]) == gpu["total_bytes"]
    rows = {row["name"]: row for row in state["sandboxes"]}
    assert (rows["web-1"]["state"], rows["web-1"]["service"], rows["web-1"]["live"]) == ("asleep", "web", True)
    assert rows["made-one"]["state"] == "stopped" and not rows["made-one"]["live"]
    page.rekindle.wait(lambda: [image["name"] for image in page.state()["images"]] == ["one"], "the image")
    (image,) = page.state()["images"]
    assert image["sizes"]["stored"] > 0 and image["problem"] is None
    # What a program was called with may be secret.
    assert "server.py" not in page.ask("/state.json")[2]
    page.rekindle("kill", "web-1", "--signal", 9)
    page.rekindle.wait(lambda: page.state()["lanes"][0]["gone_ms"], "the end of the lane")


def test_it_is_read_by_who_means_this_machine(page):
    status, headers, body = page.ask()
    assert status == 200 and body.startswith("<!doctype html>")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    assert "Access-Control-Allow-Origin" not in headers
    for path in ("/page.css", "/page.js", "/icon.svg"):
        assert page.ask(path)[0] == 200, path
    for host in ("localhost", "GPU.example:80", "[::1]:7070", "10.1.2.3"):
        assert page.ask("/state.json", host=host)[0] == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "gpu.example.evil.example"):
        status, _, body = page.ask("/state.json", host=host)
        assert status == 421 and body.count("\n") == 1 and "--page-names" in body, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        status, headers, _ = page.ask("/state.json", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method
    assert page.ask("/state.json", "HEAD")[::2] == (200, "")
    assert page.ask("/nothing")[0] == page.ask("/../daemon.log")[0] == 404


def test_where_it_is_or_how_it_is_switched_on():
    with Rekindle() as rekindle:
        with pytest.raises(CommandError, match="--page-port") as error:
            rekindle("page")
        assert error.value.code == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Rekindle(REKINDLE_PAGE_PORT=str(port)) as rekindle:
            # All else goes on.
            assert rekindle.json("services")["services"] == []
            with pytest.raises(CommandError, match=f"127.0.0.1:{port}.*in use"):
                rekindle("page")


def test_a_browser_shows_a_service_with_its_instance_and_stages(page, tmp_path):
    web = Web(page.rekindle, "--idle", "10ms", "--idle-end", "1h", "--max", 1)
    assert web.get()["count"] == 2
    web.come_to("asleep")
    page.rekindle("run", "-d", "--name", STRANGE, "--gpu", "emulated", "--", "sleep", "1000")
    page.rekindle("tag", "one", STRANGE)
    shown = Shown(page.browse(tmp_path, "--dump-dom"))
    assert "web" in shown.texts["card"] and "1 asleep (host)" in shown.texts["stages"], shown.texts
    assert "1 served" in shown.texts["card"]
    assert shown.texts["lane-name"] == "web-1"
    (first, *_) = stages = [title.rsplit(" for ", 1)[0] for title in shown.titles if title.startswith("web-1: ")]
    assert first == "web-1: waiting for memory" and "web-1: running" in stages and stages[-1] == "web-1: asleep (host)"
    assert "emulated" in shown.texts["gpus"] and "free" in shown.texts["parts"]
    assert "live" in shown.texts["contact"]
    # Names are text.
    assert STRANGE in shown.texts["sandboxes"] and STRANGE in shown.texts["images"]
    assert "onerror" not in shown.attributes


def test_a_browser_says_when_the_daemon_is_gone(page, tmp_path):
    # Another server has the page, and no state.
    scripts = [f"/{name}.js" for name in ("page", "dom", "words", "services", "timeline", "gpus", "tables")]
    files = {path: page.ask(path) for path in ["/", "/page.css", "/icon.svg", *scripts]}
    assert all(status == 200 for status, _, _ in files.values())
    page.rekindle("shutdown")
    with alone(files) as page.address:
        shown = Shown(page.browse(tmp_path, "--dump-dom"))
    assert "not reached" in shown.texts["contact"] and "cannot be reached" in shown.texts["banner"], shown.texts
