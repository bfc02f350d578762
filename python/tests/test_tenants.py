"""Functions of tenants: called with a token of theirs alone, and with nothing in common with those of others."""

import sys

import pytest
import rekindle as package
from conftest import Deployer, begun
from harness import CommandError
from test_exchange import APP, CLASS, COUNT, GIVEN

SMALL = """
@app.function(gpu="emulated", scaledown_window=0)
def token():
    return os.environ.get("REKINDLE_TOKEN")
"""


@pytest.fixture
def tenants():
    """Two tenants, `a` and `b`, and a deployer."""
    with begun() as rekindle:
        deployer = Deployer(rekindle)
        deployer.tokens = {name: rekindle("tenant", "create", name).strip() for name in "ab"}
        yield deployer


def deploy(tenants, name, source, *options):
    return tenants.rekindle.json("deploy", tenants.write(name, source), "--python", sys.executable, *options)


def test_who_calls_shows_a_token_of_the_environment_s_or_its_own(tenants, monkeypatch):
    monkeypatch.setenv("REKINDLE_TOKEN", tenants.tokens["b"])
    tenants.rekindle.environment["REKINDLE_TOKEN"] = tenants.tokens["b"]
    deploy(tenants, "small", SMALL, "--tenant", "a")
    assert tenants.service("small-token")["tenant"] == "a"
    found = lambda **options: package.Function.from_name("small", "token", **options)
    with pytest.raises(package.TokenError, match="of another tenant.*REKINDLE_TOKEN"):
        found().remote()
    # The token of whoever has deployed it is not in the image.
    assert found(token=tenants.tokens["a"]).remote() is None
    monkeypatch.setenv("REKINDLE_TOKEN", tenants.tokens["a"])
    assert found().remote() is None
    assert found(url=f"http://127.0.0.1:{tenants.service('small-token')['port']}").remote() is None
    assert "rekindle-" not in repr(found(token=tenants.tokens["a"]).client.service)
    with pytest.raises(package.TokenError, match="not known, or was revoked"):
        found(token="x").remote()
    with pytest.raises(package.DeclarationError, match="blanks"):
        found(token="a b").remote()
    monkeypatch.delenv("REKINDLE_TOKEN")
    with pytest.raises(package.TokenError, match="needs a token"):
        found().remote()
    # Nobody else's app takes its place, and what a file says counts unless the command says more.
    for options, word in (((), "to be of none"), (("--tenant", "b"), "belongs to the tenant 'a'"), (("--tenant", "c"), "tenant create c")):
        with pytest.raises(CommandError, match=word):
            deploy(tenants, "small", SMALL, *options)
    deploy(tenants, "small", SMALL + "\napp.tenant = 'a'\n")
    assert found(token=tenants.tokens["a"]).remote() is None
    # What is nobody's is shown no token: its program would have it.
    monkeypatch.setenv("REKINDLE_TOKEN", tenants.tokens["a"])
    deploy(tenants, "open", SMALL)
    place = package.Function.from_name("open", "token").client.service.find()
    assert not place.takes_token and package.Function.from_name("open", "token").remote() is None


def test_arrays_and_contexts_are_a_tenant_s_own_whatever_its_apps_are_called(tenants):
    classes = lambda *names: APP + "".join(CLASS.format(name=name, share="us", gpu="emulated") for name in names)
    deploy(tenants, "hand", classes("Giver"), "--tenant", "a")
    deploy(tenants, "ours", classes("Taker"), "--tenant", "a")
    deploy(tenants, "theirs", classes("Taker"), "--tenant", "b")
    # By its name it is of the giver's app, and by `share` of the same programs.
    image = tenants.service("theirs-Taker")["source"]["image"]
    options = ("--port", "127.0.0.1:0", "--to", 8000, "--share", "us", "--tenant")
    tenants.rekindle("serve", image, "--name", "hand-Taker", *options, "b")
    tenants.rekindle("serve", image, "--name", "hand-Open", *options[:-1])
    find = lambda app, name, tenant: package.Cls.from_name(app, name, token=tenants.tokens.get(tenant))()
    ref = find("hand", "Giver", "a").give.remote(COUNT)
    for app, name, tenant in (("theirs", "Taker", "b"), ("hand", "Taker", "b"), ("hand", "Open", None)):
        stranger = find(app, name, tenant)
        for method in (stranger.total, stranger.value, stranger.drop):
            with pytest.raises(package.RefAccessError, match="belongs to another app or tenant than"):
                method.remote(ref)
    assert (find("ours", "Taker", "a").value.remote(ref) == GIVEN).all()
    shown = tenants.rekindle.json("ps")
    assert [row["owner"] for row in shown["handed_on"]] == ["tenant:a"]
    pids = {row["tenant"]: row["pid"] for row in shown["contexts"]}
    assert len({pids["a/us"], pids["b/us"], pids["us"]}) == 3
