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
    with pytest.raises(CommandError, match="tenant create c"):
        deploy(tenants, "small", SMALL, "--tenant", "c")
    # What a file says counts unless the command says more.
    deploy(tenants, "small", SMALL + "\napp.tenant = 'a'\n")
    assert found(token=tenants.tokens["a"]).remote() is None
    assert [row["tenant"] for row in tenants.rekindle.json("services")["services"]] == ["a"]
    # What is nobody's is shown no token: its program would have it.
    monkeypatch.setenv("REKINDLE_TOKEN", tenants.tokens["a"])
    deploy(tenants, "open", SMALL)
    place = package.Function.from_name("open", "token").client.service.find()
    assert not place.takes_token and package.Function.from_name("open", "token").remote() is None


WHOSE = """
@app.function(gpu="emulated", scaledown_window=3600)
def whose():
    return {value!r}

@app.function(gpu="emulated")
def further():
    return {value!r}
"""


def images(tenants):
    return sorted({row["name"].rpartition("@")[0] for row in tenants.rekindle.json("images")["images"]})


def test_an_app_of_one_name_is_deployed_for_each_tenant_and_for_nobody(tenants, monkeypatch):
    owners = {None: (), "a": ("--tenant", "a"), "b": ("--tenant", "b")}
    names = ("named-further", "named-whose")
    deployed = {owner: deploy(tenants, "named", WHOSE.format(value=str(owner)), *options) for owner, options in owners.items()}
    assert {owner: shown["tenant"] for owner, shown in deployed.items()} == {owner: owner for owner in owners}
    assert deployed["a"]["services"][0]["call"] == 'rekindle.Function.from_name("named", "whose", tenant="a").remote(...)'
    rows = [(row["name"], row["tenant"]) for row in tenants.rekindle.json("services")["services"]]
    assert rows == [(name, owner) for name in names for owner in owners]
    assert images(tenants) == sorted([*names, *(f"{owner}@{name}" for owner in "ab" for name in names)])

    def call(owner=None, **options):
        return package.Function.from_name("named", "whose", token=tenants.tokens.get(owner), **options).remote()

    assert (call(), call("a", tenant="a"), call("b", tenant="b")) == ("None", "a", "b")
    with pytest.raises(package.TokenError, match="of another tenant"):
        call("a", tenant="b")
    with pytest.raises(package.NotFoundError, match="for the tenant 'c'"):
        call(tenant="c")
    # As the environment says it, if that tenant has it; what a caller says by itself counts more.
    monkeypatch.setenv("REKINDLE_TENANT", "b")
    assert (call("b"), call("a", tenant="a"), call(tenant="none")) == ("b", "a", "None")
    monkeypatch.setenv("REKINDLE_TENANT", "c")
    assert call() == "None"
    monkeypatch.delenv("REKINDLE_TENANT")

    # Deploying it again for one changes nothing of the others', nor of their images; also of one without a running instance.
    before = {row["tenant"]: row["source"]["image"] for row in tenants.rekindle.json("services")["services"] if row["name"] == "named-whose"}
    again = WHOSE.format(value="again").partition('\n@app.function(gpu="emulated")\n')[0]
    shown = deploy(tenants, "named", again, "--tenant", "a")
    assert shown["removed"] == ["named-further"]
    tenants.rekindle.wait(lambda: not [row for row in tenants.rekindle.json("ps")["sandboxes"] if row["name"] == "a@named-further-1"], "its end")
    after = {row["tenant"]: row["source"]["image"] for row in tenants.rekindle.json("services")["services"] if row["name"] == "named-whose"}
    assert after | {"a": None} == before | {"a": None} and after["a"] > before["a"]
    assert (call(), call("a", tenant="a"), call("b", tenant="b")) == ("None", "again", "b")
    deploy(tenants, "named", again + "\napp.tenant = 'b'\n", "--tenant", "none")
    deploy(tenants, "named", again, "--tenant", "a")
    assert images(tenants) == ["a@named-whose", "b@named-further", "b@named-whose", "named-whose"]

    # A plain name that may be either's is refused.
    tenants.rekindle("unserve", "named-whose", "--tenant", "none")
    with pytest.raises(package.NotFoundError, match="tenants a, b has 'whose'.*tenant="):
        call("a")
    tenants.rekindle("unserve", "named-whose", "--tenant", "b")
    assert call("a") == "again"


def test_an_image_of_an_earlier_version_that_does_not_name_the_tenant_goes_with_the_next_deployment(tenants):
    deploy(tenants, "named", SMALL, "--tenant", "a")
    (service,) = tenants.rekindle.json("services")["services"]
    earlier = service["source"]["image"].removeprefix("a@")
    tenants.rekindle("tag", service["source"]["image"], earlier)
    tenants.rekindle("serve", earlier, "--name", "named-token")
    tenants.rekindle("rmi", service["source"]["image"])
    # Nobody's app of that name leaves it alone.
    deploy(tenants, "named", SMALL)
    assert earlier in [row["name"] for row in tenants.rekindle.json("images")["images"]]
    assert package.Function.from_name("named", "token", token=tenants.tokens["a"], tenant="a").remote() is None
    deploy(tenants, "named", SMALL, "--tenant", "a")
    assert images(tenants) == ["a@named-token", "named-token"]
    assert earlier not in [row["name"] for row in tenants.rekindle.json("images")["images"]]


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
