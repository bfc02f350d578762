"""Names of services: each tenant has its own, what is nobody's has others, and a plain name means one of them."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys

import pytest
from openmetrics import Metrics
from rekindle import PATIENCE
from test_page import Page
from test_private_network import daemon
from test_services import SERVER, begun, image
from test_tenants import LIVE, refused

# Of nobody, and of two tenants.
ALL = (None, "a", "b")


@pytest.fixture
def rekindle():
    with begun() as instance:
        yield instance


class Webs:
    """Services named `web`, by their tenants."""

    def __init__(self, rekindle, *images):
        self.rekindle, self.ports = rekindle, {}
        for name in images:
            image(rekindle, name, sys.executable, SERVER, name, 8000)
        self.tokens = {name: rekindle("tenant", "create", name).strip() for name in "ab"}

    def begin(self, *tenants):
        for tenant in tenants:
            shown = self.serve(tenant, "one", "--port", "127.0.0.1:0", "--to", 8000, *LIVE)
            self.ports[tenant] = shown["port"]

    def serve(self, tenant, image, *options):
        shown = self.rekindle.json("serve", image, "--name", "web", "--tenant", tenant or "none", *options)
        assert (shown["name"], shown["tenant"]) == ("web", tenant)
        return shown

    def ask(self, tenant, token=None):
        """Status and body of the answer, with the token of a tenant."""
        headers = {"Authorization": f"Bearer {self.tokens[token]}"} if token else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[tenant], timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", "/", headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def tags(self):
        """Which image's instance answers each tenant."""
        answers = {tenant: self.ask(tenant, tenant) for tenant in self.ports}
        assert {status for status, _ in answers.values()} == {200}, answers
        return {tenant: json.loads(body)["tag"] for tenant, (_, body) in answers.items()}

    def count(self, tenant):
        return json.loads(self.ask(tenant, tenant)[1])["count"]

    def rows(self, *options):
        """Services by their tenants."""
        rows = self.rekindle.json("services", *options)["services"]
        assert {row["name"] for row in rows} <= {"web"}
        return {row["tenant"]: row for row in rows}

    def plan(self, name):
        return {tenant: row["plan"][name] for tenant, row in self.rows().items()}

    def instances(self):
        """Pids of those that run, by their names."""
        return {row["name"]: row["pid"] for row in self.rekindle.sandboxes() if row["pid"]}

    def files(self):
        return sorted(file.name for file in (self.rekindle.state / "services").iterdir())


def test_two_tenants_and_nobody_have_a_service_of_one_name_each(rekindle):
    webs = Webs(rekindle, "one", "two")
    webs.begin(*ALL)
    assert webs.tags() == dict.fromkeys(ALL, "one")
    assert [webs.ask("a", token)[0] for token in (None, "b", "a")] == [401, 403, 200]
    assert [webs.ask("b", token)[0] for token in (None, "a", "b")] == [401, 403, 200]
    assert webs.ask(None)[0] == 200
    instances = webs.instances()
    assert sorted(instances) == ["a@web-1", "b@web-1", "web-1"]
    assert webs.files() == ["a@web.json", "b@web.json", "web.json"]
    assert [list(webs.rows(*words)) for words in ((), ("--tenant", "a"), ("--tenant", "none"))] == [[None, "a", "b"], ["a"], [None]]
    assert "no tenant named" in refused(rekindle, "services", "--tenant", "x")
    assert [row["services"] for row in rekindle.json("tenant", "ls")["tenants"]] == [["web"], ["web"]]

    # Each is changed by itself.
    rekindle("scale", "web", "--tenant", "a", "--max", 2)
    assert webs.plan("max") == {None: 1, "a": 2, "b": 1}
    rekindle("scale", "web", "--max", 3)
    assert webs.plan("max") == {None: 3, "a": 2, "b": 1}
    webs.serve("a", "two")
    webs.serve("b", "two", "--canary", "50%")
    assert webs.tags() | {"b": None} == {None: "one", "a": "two", "b": None}
    rekindle.wait(lambda: sorted(webs.instances()) == ["a@web-2", "b@web-1", "b@web-c1.1", "web-1"], "the end of what was replaced")

    # All are there again after a crash, with their instances.
    before, instances = webs.rows(), webs.instances()
    counts = {tenant: webs.count(tenant) for tenant in (None, "a")}
    os.kill(daemon(rekindle), signal.SIGKILL)
    after = webs.rows()
    shown = lambda rows: {
        tenant: (row["source"]["image"], row["port"], row["plan"], [one["name"] for one in row["instances"]]) for tenant, row in rows.items()
    }
    assert shown(after) == shown(before) and webs.instances() == instances
    assert after["b"]["canary"]["image"] == "two" and [one["name"] for one in after["b"]["canary"]["instances"]] == ["b@web-c1.1"]
    assert {tenant: webs.count(tenant) for tenant in counts} == {tenant: count + 1 for tenant, count in counts.items()}
    assert [webs.ask("a", token)[0] for token in (None, "b")] == [401, 403]

    # One that is drained or removed takes nothing from the others.
    rekindle("drain", "web", "--tenant", "a")
    assert [webs.ask(tenant, tenant)[0] for tenant in ALL] == [200, 503, 200]
    rekindle("unserve", "web")
    with pytest.raises(ConnectionRefusedError):
        webs.ask(None)
    assert list(webs.rows()) == ["a", "b"] and webs.files() == ["a@web.json", "b@web.json"]
    assert webs.ask("b", "b")[0] == 200
    assert "web" in refused(rekindle, "tenant", "rm", "b")
    rekindle("unserve", "web", "--tenant", "b")
    rekindle("tenant", "rm", "b")
    assert list(webs.rows()) == ["a"] and webs.files() == ["a@web.json"]
    rekindle.wait(lambda: not webs.instances(), "the end of all instances")


def test_a_plain_name_is_nobody_s_service_or_the_only_tenant_s(rekindle):
    webs = Webs(rekindle, "one")
    webs.begin("a")
    # It is the only one.
    rekindle("scale", "web", "--max", 2)
    rekindle("serve", "one", "--name", "web", "--idle", "2h")
    assert list(webs.rows()) == ["a"] and webs.plan("max") == {"a": 2} and webs.plan("idle_ms") == {"a": 7_200_000}
    # Another tenant's or nobody's is a new one, which needs a port.
    for tenant in ("b", "none"):
        assert "--port" in refused(rekindle, "serve", "one", "--name", "web", "--tenant", tenant)
        assert "no service named" in refused(rekindle, "scale", "web", "--max", 2, "--tenant", tenant)
    webs.begin("b")
    for words in (("scale", "web", "--max", 4), ("drain", "web"), ("unserve", "web"), ("unserve", "web", "--now"), ("serve", "one", "--name", "web")):
        said = refused(rekindle, *words)
        assert "tenants a, b has a service" in said and "--tenant" in said, said
    assert webs.tags() == {"a": "one", "b": "one"} and webs.plan("max") == {"a": 2, "b": 1}
    webs.begin(None)
    rekindle("scale", "web", "--max", 5)
    assert webs.plan("max") == {None: 5, "a": 2, "b": 1}
    rekindle("unserve", "web")
    assert list(webs.rows()) == ["a", "b"]
    rekindle("unserve", "web", "--tenant", "a")
    rekindle("unserve", "web")
    assert webs.rows() == {}
    assert "no service named" in refused(rekindle, "unserve", "web")
    for name in ("a@web", "../web"):
        assert "cannot be named" in refused(rekindle, "serve", "one", "--name", name, "--port", "127.0.0.1:0")


def completed(rekindle, *words):
    """What a shell is offered for the last of the words, but options."""
    asked = {"REKINDLE_COMPLETE": "bash", "_CLAP_IFS": "\n", "_CLAP_COMPLETE_INDEX": str(len(words))}
    done = subprocess.run([rekindle.command, "--", "rekindle", *words], env=rekindle.environment | asked, capture_output=True, text=True, check=True)
    return [word for word in done.stdout.split("\n") if word and not word.startswith("-")]


def test_a_shell_completes_names_of_the_tenant_that_the_line_has(rekindle):
    webs = Webs(rekindle, "one")
    webs.begin("a", "b")
    rekindle("serve", "one", "--name", "other", "--port", "127.0.0.1:0", "--to", 8000, *LIVE)
    for words, expected in (
        (("unserve", ""), ["other", "web"]),
        (("unserve", "--tenant", "a", ""), ["web"]),
        (("drain", "--tenant=none", ""), ["other"]),
        (("scale", "--tenant", ""), ["a", "b"]),
        (("services", "--tenant", ""), ["a", "b"]),
    ):
        # A shell does not wait long for names.
        rekindle.wait(lambda: completed(rekindle, *words) == expected, f"{expected} for {words}")  # noqa: B023


def as_earlier(rekindle):
    """Has files and names of a tenant's services and instances be as versions had them that knew names of the machine alone."""
    for file in (rekindle.state / "services").glob("*@*.json"):
        file.rename(file.with_name(file.name.partition("@")[2]))
    for file in (rekindle.state / "sandboxes").glob("*.json"):
        record = json.loads(file.read_text())
        record["name"] = record["name"].rpartition("@")[2]
        file.write_text(json.dumps(record))


def test_services_and_instances_of_an_earlier_version_are_taken_over(rekindle):
    webs = Webs(rekindle, "one", "two")
    webs.begin("a")
    webs.serve("a", "two", "--canary", "50%")
    rekindle("serve", "one", "--name", "other", "--port", "127.0.0.1:0", "--to", 8000, *LIVE)
    counts = sorted(webs.count("a") for _ in range(2))
    os.kill(daemon(rekindle), signal.SIGKILL)
    as_earlier(rekindle)
    assert webs.files() == ["other.json", "web.json"]
    # The same programs go on, by names of the tenant's.
    assert sorted(webs.instances()) == ["a@web-1", "a@web-c1.1", "other-1"]
    assert webs.files() == ["a@web.json", "other.json"]
    assert sorted(webs.count("a") for _ in range(2)) == [count + 1 for count in counts]
    assert [webs.ask("a", token)[0] for token in (None, "b")] == [401, 403]
    (row,) = rekindle.json("services", "--tenant", "a")["services"]
    assert [one["name"] for one in row["instances"]] == ["a@web-1"]
    # So what is nobody's has its names to itself.
    webs.begin(None)
    assert webs.tags()[None] == "one" and sorted(webs.instances()) == ["a@web-1", "a@web-c1.1", "other-1", "web-1"]
    before = webs.instances()
    os.kill(daemon(rekindle), signal.SIGKILL)
    assert webs.instances() == before and webs.ask("a", "a")[0] == webs.ask(None)[0] == 200
    rekindle("unserve", "other")


def test_whoever_looks_is_told_whose_service_it_is(tmp_path):
    log = tmp_path / "log"
    with begun(REKINDLE_PAGE_PORT="127.0.0.1:0", REKINDLE_ACCESS_LOG=str(log)) as rekindle:
        webs, page = Webs(rekindle, "one"), Page(rekindle)
        webs.begin(*ALL)
        asked = {None: 1, "a": 2, "b": 3}
        for tenant, times in asked.items():
            assert [webs.ask(tenant, tenant)[0] for _ in range(times)] == [200] * times
        webs.serve("b", "one", "--max", 2)
        rekindle.wait(lambda: len(log.read_text().splitlines()) == sum(asked.values()), "all lines of the access log")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        told = lambda tenant: (tenant, f"{tenant}@web-1" if tenant else "web-1")
        assert [(line["tenant"], line["instance"]) for line in lines if line["service"] == "web"] == [
            told(tenant) for tenant, times in asked.items() for _ in range(times)
        ]
        metrics = Metrics(page.ask("/metrics")[2])
        for tenant, times in asked.items():
            labels = {"service": "web", "tenant": tenant or ""}
            assert metrics.get("service_requests_total", status="2xx", **labels) == times
            assert metrics.get("service_instances", stage="running", canary="false", **labels) == 1
            assert metrics.get("service_gpu_memory_bytes", **labels) == webs.rows()[tenant]["gpu_bytes"]
            assert metrics.get("service_start_seconds_count", **{"from": "image"}, **labels) == 1
            assert metrics.get("service_instances_limit", **labels) == (2 if tenant == "b" else 1)
        state = page.state()
        assert {(lane["service"], lane["tenant"], lane["instance"]) for lane in state["lanes"]} == {("web", *told(tenant)) for tenant in ALL}
        rows = [(row["service"], row["service_tenant"], row["name"]) for row in state["sandboxes"] if row["live"]]
        assert sorted(rows, key=lambda row: row[2]) == [("web", *told(tenant)) for tenant in ("a", "b", None)]
        shown = [line.split() for line in rekindle("services").splitlines()]
        assert [words[:2] for words in shown if words[0] == "web"] == [["web", "one"], ["web", "a"], ["web", "b"]]
