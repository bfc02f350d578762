"""Tenants: whose token asks which service, what a tenant's services have together, and that nobody is held up by another."""

import contextlib
import http.client
import json
import re
import stat
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from rekindle import PATIENCE, CommandError
from test_services import SERVER, begun, image


@pytest.fixture
def rekindle():
    with begun() as instance:
        yield instance


def refused(rekindle, *words):
    """What a command that is refused says: a sentence."""
    with pytest.raises(CommandError) as caught:
        rekindle(*words)
    assert caught.value.message.count("\n") == 0
    return caught.value.message


class Tenants:
    """Services of tenants, and who asks them."""

    def __init__(self, rekindle):
        self.rekindle, self.ports, self.tokens = rekindle, {}, {}

    def create(self, name, *quota):
        self.tokens[name] = self.rekindle("tenant", "create", name, *quota).strip()

    def serve(self, service, *options, image="one"):
        shown = self.rekindle.json("serve", image, "--name", service, *options)
        self.ports[service] = shown["port"]
        return shown

    def take(self, name="one", *arguments):
        image(self.rekindle, name, sys.executable, SERVER, name, 8000, *arguments)

    def begin(self, service, *options, image="one"):
        return self.serve(service, "--port", "127.0.0.1:0", "--to", 8000, *options, image=image)

    def ask(self, service, token=None, path="/", **headers):
        """Status, headers and body of the answer. The token is one, or that of a tenant."""
        if token is not None:
            headers["Authorization"] = f"Bearer {self.tokens.get(token, token)}"
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[service], timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def status(self, service, token=None):
        return self.ask(service, token)[0]

    @contextlib.contextmanager
    def busy(self, *services):
        """Each has a request in its instance's hands, of the tenant `a`, until it is let go; with threads for more."""
        marks = {service: self.rekindle.root / f"busy-{service}" for service in services}
        with ThreadPoolExecutor(4) as threads:
            try:
                asked = [threads.submit(self.ask, service, "a", f"/hold?{mark}") for service, mark in marks.items()]
                self.rekindle.wait(lambda: all(mark.with_suffix(".held").exists() for mark in marks.values()), "all to be held")
                yield threads
            finally:
                for service in services:
                    self.let_go(service)
            assert [one.result()[0] for one in asked] == [200] * len(services)

    def let_go(self, service):
        (self.rekindle.root / f"busy-{service}").with_suffix(".go").touch()

    def stage(self, service):
        return next((one["stage"] for one in self.service(service)["instances"]), "none")

    def shown(self, name):
        return next(row for row in self.rekindle.json("tenant", "ls")["tenants"] if row["name"] == name)

    def service(self, name):
        return next(row for row in self.rekindle.json("services")["services"] if row["name"] == name)


def test_a_service_answers_its_tenant_s_tokens_alone_and_keeps_to_that_over_a_restart(rekindle):
    tenants = Tenants(rekindle)
    tenants.take()
    tenants.create("a", "--rate", "1000/s", "--memory", "1G", "--instances", 4)
    tenants.create("b")
    tenants.begin("web", "--tenant", "a")
    tenants.begin("open")
    # The program does not see the token, and sees what else was sent.
    status, _, body = tenants.ask("web", "a", **{"X-Own": "1"})
    seen = {name.lower(): value for name, value in json.loads(body)["headers"].items()}
    assert status == 200 and seen["x-own"] == "1" and "authorization" not in seen
    # A service of nobody's is as it always was.
    _, _, body = tenants.ask("open", "x")
    assert "Bearer x" in json.loads(body)["headers"].values()

    status, headers, body = tenants.ask("web")
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="rekindle"') and b"Authorization" in body
    for wrong in ("x", tenants.tokens["a"][:-1], tenants.tokens["a"] + "0"):
        status, headers, _ = tenants.ask("web", wrong)
        assert status == 401 and 'error="invalid_token"' in headers["WWW-Authenticate"]
    assert tenants.ask("web", Authorization=f"Basic {tenants.tokens['a']}")[0] == 401
    assert tenants.status("web", "b") == 403
    assert tenants.service("web")["tenant"] == "a" and tenants.service("open")["tenant"] is None
    assert re.search(r"(?m)^ *web +a +one ", rekindle("services"))

    # A further token, and one fewer.
    second = rekindle("tenant", "token", "a").strip()
    assert tenants.status("web", second) == 200
    first_id = tenants.shown("a")["tokens"][0]["id"]
    rekindle("tenant", "token", "a", "--revoke", first_id)
    assert tenants.status("web", "a") == 401 and tenants.status("web", second) == 200
    assert "no token" in refused(rekindle, "tenant", "token", "a", "--revoke", first_id)

    # Nothing that is kept has a token in it, and it is nobody else's to read.
    kept = [*(rekindle.root / "state/tenants").iterdir()]
    assert sorted(file.name for file in kept) == ["a.json", "b.json"]
    for file in kept:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert not any(token.rsplit("-")[-1] in file.read_text() for token in (*tenants.tokens.values(), second))

    before = tenants.shown("a")
    rekindle("shutdown")
    assert tenants.shown("a") == before
    assert before["quota"] == {"memory_bytes": 1 << 30, "instances": 4, "rate": "1000/s"}
    assert tenants.status("web", second) == 200 and tenants.status("web", "a") == 401
    assert tenants.status("web", "b") == 403 and tenants.status("web") == 401


def test_what_cannot_be_of_tenants_is_said_and_changes_nothing(rekindle):
    tenants = Tenants(rekindle)
    # Of those that make one name at once, one has it.
    with ThreadPoolExecutor(4) as threads:
        outcomes = [*threads.map(lambda _: rekindle("tenant", "create", "a", check=False), range(4))]
    (tenants.tokens["a"],) = [said.strip() for said in outcomes if said]
    assert len(tenants.shown("a")["tokens"]) == 1
    assert "already" in refused(rekindle, "tenant", "create", "a")
    for name in ("..", "-a", "a/b", "a b"):
        assert "is no tenant's name" in refused(rekindle, "tenant", "create", "--", name)
    for words in (("set", "x", "--rate", "1/s"), ("token", "x"), ("rm", "x")):
        assert "no tenant named" in refused(rekindle, "tenant", *words)
    for option, wrong in (("--rate", "0/s"), ("--instances", "0"), ("--memory", "much")):
        with pytest.raises(CommandError):
            rekindle("tenant", "set", "a", option, wrong)
    assert tenants.shown("a")["quota"] == {"memory_bytes": None, "instances": None, "rate": None}

    tenants.take()
    new = ("serve", "one", "--name", "web", "--port", "127.0.0.1:0", "--to", 8000, "--tenant")
    assert "no tenant named" in refused(rekindle, *new, "x")
    assert rekindle.json("services")["services"] == []
    # What cannot be kept is not so, and what came to nothing is nobody's.
    for name in "ax":
        (rekindle.state / f"tenants/{name}.json.partial").mkdir()
    assert "record" in refused(rekindle, "tenant", "create", "x")
    assert "record" in refused(rekindle, "tenant", "set", "a", "--rate", "1/h")
    assert "record" in refused(rekindle, "tenant", "token", "a")
    assert [(row["name"], row["quota"]["rate"], len(row["tokens"])) for row in rekindle.json("tenant", "ls")["tenants"]] == [("a", None, 1)]
    for name in "ax":
        (rekindle.state / f"tenants/{name}.json.partial").rmdir()
    tenants.create("x")
    assert "none" in refused(rekindle, "serve", "none", *new[2:], "x")
    rekindle("tenant", "rm", "x")
    tenants.begin("web", "--tenant", "a")
    tenants.create("b")
    # A service stays whose it is, and its tenant stays for as long.
    tenants.serve("web", "--idle", "1h")
    assert tenants.service("web")["tenant"] == "a" and tenants.status("web", "a") == 200
    assert "web" in refused(rekindle, "tenant", "rm", "a")
    assert tenants.status("web", "a") == 200
    rekindle("unserve", "web")
    rekindle("tenant", "rm", "a")
    assert [row["name"] for row in rekindle.json("tenant", "ls")["tenants"]] == ["b"]
    # Nobody has its tokens, also of a later one of its name.
    former = tenants.tokens["a"]
    tenants.create("a")
    tenants.begin("web", "--tenant", "a")
    assert tenants.status("web", former) == 401


def test_a_service_whose_tenant_was_lost_is_open_to_nobody(rekindle):
    tenants = Tenants(rekindle)
    tenants.take()
    tenants.create("a")
    tenants.begin("web", "--tenant", "a")
    rekindle("shutdown")
    (rekindle.state / "tenants/a.json").write_text("{")
    assert rekindle.json("services")["services"] == []
    with pytest.raises(ConnectionRefusedError):
        tenants.status("web", "a")
    rekindle.wait(lambda: not [row for row in rekindle.json("ps")["sandboxes"] if row["state"] != "exited"], "the end of its instances")
    assert "already" in refused(rekindle, "tenant", "create", "a"), "what cannot be read is not written over"


def test_a_rate_that_is_used_up_is_its_tenant_s_alone(rekindle):
    tenants = Tenants(rekindle)
    tenants.take()
    tenants.create("a", "--rate", "3/h")
    tenants.create("b", "--rate", "3/h")
    for name in "ab":
        tenants.begin(f"web-{name}", "--tenant", name)
        tenants.begin(f"other-{name}", "--tenant", name)
    # Who shows no token of the tenant's takes none of its turns.
    assert [tenants.status("web-a", token) for token in (None, "x", "b", "b")] == [401, 401, 403, 403]
    assert [tenants.status(service, "a") for service in ("web-a", "other-a", "web-a")] == [200, 200, 200]
    for service in ("web-a", "other-a"):
        status, headers, body = tenants.ask(service, "a")
        assert status == 429 and 1000 < int(headers["Retry-After"]) <= 1200 and b"more often" in body
    assert tenants.status("web-b", "b") == 200
    assert (tenants.shown("a")["too_often"], tenants.shown("b")["too_often"]) == (2, 0)
    rekindle("tenant", "set", "a", "--rate", "none")
    assert [tenants.status("web-a", "a") for _ in range(4)] == [200] * 4


LIVE = ("--idle", "1h", "--idle-end", "1h", "--max", 1)


def test_gpu_memory_that_is_used_up_is_its_tenant_s_alone(rekindle):
    tenants = Tenants(rekindle)
    tenants.take("one", 40)
    tenants.create("a", "--memory", "100M")
    tenants.create("b")
    for service in ("a-1", "a-2", "a-3"):
        tenants.begin(service, "--tenant", "a", *LIVE)
    # The one that was asked for least has gone for the last.
    rekindle.wait(lambda: tenants.stage("a-1") == "asleep", "the first one to go")
    tenants.begin("b-1", "--tenant", "b", *LIVE)
    with tenants.busy("a-2", "a-3") as threads:
        waiting = threads.submit(tenants.ask, "a-1", "a")
        rekindle.wait(lambda: tenants.service("a-1")["queued"] == 1, "a request that waits")
        assert 'tenant "a" have' in tenants.service("a-1")["problem"]
        # Others are served meanwhile, also by instances that are started now.
        assert tenants.status("b-1", "b") == 200
        tenants.begin("b-2", "--tenant", "b", *LIVE)
        tenants.begin("open", *LIVE)
        assert tenants.status("b-2", "b") == 200 and tenants.status("open") == 200
        assert not waiting.done()
        assert tenants.shown("a")["used"]["memory_bytes"] <= 100 << 20 < tenants.shown("b")["used"]["memory_bytes"] + (40 << 20)
        tenants.let_go("a-2")
        assert waiting.result()[0] == 200
    # Those of the others have never gone for it.
    assert [tenants.stage(service) for service in ("b-1", "b-2", "open")] == ["running"] * 3
    # Less than there is by now, and less than any of them needs.
    rekindle("tenant", "set", "a", "--memory", "50M")
    rekindle.wait(lambda: tenants.shown("a")["used"]["memory_bytes"] <= 50 << 20, "one of them to go")
    rekindle("tenant", "set", "a", "--memory", "10M")
    rekindle.wait(lambda: tenants.shown("a")["used"]["memory_bytes"] == 0, "all of them to go")
    said = refused(rekindle, "serve", "one", "--name", "a-4", "--tenant", "a", "--port", "127.0.0.1:0", "--to", 8000)
    assert "10 MB" in said and "tenant set a --memory" in said
    status, _, body = tenants.ask("a-1", "a")
    assert status == 503 and b"tenant set a --memory" in body
    assert re.search(r"(?m)^ *a +a-1, a-2, a-3 +0 B of 10.0 MiB ", rekindle("tenant", "ls"))


def test_instances_that_are_used_up_are_their_tenant_s_alone(rekindle):
    tenants = Tenants(rekindle)
    tenants.take()
    tenants.create("a", "--instances", 2)
    tenants.create("b", "--instances", 1)
    for service in ("a-1", "a-2"):
        tenants.begin(service, "--tenant", "a", *LIVE)
    assert tenants.shown("a")["used"]["instances"] == 2
    # For a third one the one goes that was asked for least, to its end.
    assert tenants.status("a-2", "a") == 200
    tenants.begin("a-3", "--tenant", "a", *LIVE)
    rekindle.wait(lambda: [tenants.stage(one) for one in ("a-1", "a-2", "a-3")] == ["none", "running", "running"], "the first one's end")
    with tenants.busy("a-2", "a-3") as threads:
        tenants.serve("a-1", "--timeout", "300ms")
        status, headers, body = tenants.ask("a-1", "a")
        assert status == 503 and headers["Retry-After"] and b"have 2 instances, and may have 2" in body, body
        tenants.serve("a-1", "--timeout", "60s")
        waiting = threads.submit(tenants.ask, "a-1", "a")
        rekindle.wait(lambda: tenants.service("a-1")["queued"] == 1, "a request that waits")
        tenants.begin("b-1", "--tenant", "b", *LIVE)
        assert tenants.status("b-1", "b") == 200
        rekindle("tenant", "set", "a", "--instances", 3)
        assert waiting.result()[0] == 200
    # A new image comes up in the place of the instance that there is.
    tenants.take("two")
    tenants.serve("b-1", "--tenant", "b", image="two")
    assert json.loads(tenants.ask("b-1", "b")[2])["tag"] == "two"
    rekindle.wait(lambda: tenants.shown("b")["used"]["instances"] == 1, "the end of the former one")
    # A canary's are counted too, and its requests need the token as all do.
    rekindle("tenant", "set", "b", "--instances", 2)
    tenants.serve("b-1", "--canary", "50%", image="one")
    assert tenants.shown("b")["used"]["instances"] == 2
    assert [tenants.status("b-1", token) for token in (None, None, "a", "a")] == [401, 401, 403, 403]
    assert {json.loads(tenants.ask("b-1", "b")[2])["tag"] for _ in range(2)} == {"one", "two"}
    # A restart counts those that are there.
    rekindle("shutdown")
    assert tenants.shown("a")["used"]["instances"] == 3 and tenants.shown("b")["used"]["instances"] == 2
    assert tenants.status("a-1", "a") == 200
