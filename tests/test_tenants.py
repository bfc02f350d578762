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
    tenants.begin("web", "--tenant", "a")
    tenants.create("b")
    # A service stays whose it is, and its tenant stays for as long.
    tenants.begin("open")
    assert "belongs to the tenant" in refused(rekindle, "serve", "one", "--name", "web", "--tenant", "b")
    assert "belongs to no tenant" in refused(rekindle, "serve", "one", "--name", "open", "--tenant", "a")
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
