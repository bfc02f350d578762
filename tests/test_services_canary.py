"""A new image that some of a service's requests go to, before all do."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from rekindle import CommandError
from test_services import SERVER, Web, begun, image


@pytest.fixture
def rekindle():
    with begun() as instance:
        yield instance


class Pair(Web):
    """The service `web` of the image `one`, and the image `two` beside it."""

    def __init__(self, rekindle, *options):
        super().__init__(rekindle, *options)
        image(rekindle, "two", sys.executable, SERVER, "two")

    def tags(self, count):
        return [self.get()["tag"] for _ in range(count)]

    def canary(self):
        return self.shown()["canary"]


def test_a_share_goes_to_the_new_image_until_all_or_none_does(rekindle):
    web = Pair(rekindle)
    shown = web.serve("two", "--canary", "20%")
    assert shown["canary"]["image"] == "two" and shown["source"]["image"] == "one"
    assert web.tags(10) == ["one", "one", "one", "one", "two"] * 2
    rekindle.wait(lambda: (web.shown()["served"], web.canary()["served"]) == (8, 2), "all to be counted")
    assert web.canary()["share"] == 0.2 and web.canary()["stopped"] is None
    table = rekindle("services")
    assert "web (20% canary)" in table and "two" in table
    assert {row["name"] for row in rekindle.sandboxes() if row["pid"]} == {"web-1", "web-c1.1"}
    # Another share, by another daemon.
    web.serve("two", "--canary", "50%")
    rekindle("shutdown")
    rekindle.wait(web.is_closed, "its port to be closed")
    assert web.canary()["share"] == 0.5
    rekindle.wait(lambda: not web.is_closed(), "the next daemon")
    assert sorted(web.tags(4)) == ["one", "one", "two", "two"]
    assert {row["name"] for row in rekindle.sandboxes() if row["pid"]} == {"web-1", "web-c1.1"}
    # It is taken back.
    web.serve("one")
    assert web.canary() is None and web.tags(4) == ["one"] * 4
    rekindle.wait(lambda: not rekindle.sandbox("web-c1.1")["pid"], "the end of its instance")
    # It is promoted.
    web.serve("two", "--canary", "10%")
    assert web.serve("two")["source"]["image"] == "two"
    assert web.tags(4) == ["two"] * 4 and web.canary() is None
    rekindle.wait(lambda: web.stages() == ["running"], "the end of all others")
    assert web.shown()["failed"] == 0


def test_a_canary_that_fails_takes_no_further_requests(rekindle):
    web = Pair(rekindle)
    web.serve("two", "--canary", "50%")
    assert web.get()["tag"] == "one"
    # The canary's, and it cannot be asked twice.
    assert web.ask("/crash", "POST", b"once")[0] == 502
    assert web.tags(4) == ["one"] * 4
    assert "ended the connection before it answered" in web.canary()["stopped"]
    assert (web.canary()["failed"], web.shown()["failed"]) == (1, 0)
    rekindle.wait(lambda: not web.canary()["instances"], "the end of its instances")
    assert "ended the connection" in rekindle("services")
    # The same image may be tried again; what can be asked twice is answered by the others.
    web.serve("two", "--canary", "50%")
    assert web.get()["tag"] == "one"
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(web.ask, f"/hold?{web.mark('a')}")
        web.held("a")
        assert (web.canary()["in_flight"], web.shown()["in_flight"]) == (1, 0)
        rekindle("kill", "web-c2.1", "--signal", 9)
        # It is held by the other one, to which it was sent once more.
        web.let_go("a")
        assert asked.result()[0] == 200
    assert web.canary()["stopped"] and web.tags(2) == ["one", "one"]


def test_one_whose_further_instances_cannot_be_started_sends_its_requests_on(rekindle):
    web = Pair(rekindle, "--idle", "0s", "--idle-end", "0s")
    web.serve("two", "--canary", "50%")
    rekindle.wait(lambda: not web.canary()["instances"], "the end of its first instance")
    rekindle("rmi", "two", "--force", check=False)
    rekindle("rmi", "two", check=False)
    assert "two" not in [row["name"] for row in rekindle.json("images")["images"]]
    assert web.tags(4) == ["one"] * 4
    assert "two" in web.canary()["stopped"]


def test_what_is_no_canary_is_refused_and_changes_nothing(rekindle):
    web = Pair(rekindle)
    image(rekindle, "silent", sys.executable, SERVER, "silent", 8001)

    def refused(name, *options, service="web"):
        with pytest.raises(CommandError) as error:
            rekindle("serve", name, "--name", service, *options)
        assert error.value.message.count("\n") == 0 and web.canary() is None
        return error.value.message

    assert "no service named" in refused("two", "--canary", "10%", service="other")
    assert "all requests" in refused("one", "--canary", "10%")
    assert "change them without --canary" in refused("two", "--canary", "10%", "--max", 3)
    web.serve("one", "--timeout", "2s")
    assert "does not listen on its port 8000" in refused("silent", "--canary", "10%")
    web.serve("two", "--canary", "10%")
    with pytest.raises(CommandError, match="is a canary of the service"):
        web.serve("silent", "--canary", "10%")
    assert web.canary()["image"] == "two"
    rekindle("drain", "web")
    assert web.canary() is None and not web.stages()
    with pytest.raises(CommandError, match="takes no more requests"):
        web.serve("two", "--canary", "10%")
