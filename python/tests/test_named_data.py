"""Calls that name another object in place of declared data."""

import asyncio
import functools
import http.client

import pytest
import rekindle as package
from conftest import APPS
from nodes import COUNT, expected, node_with, numbers
from rekindle.data import Data
from rekindle.marks import Batched
from rekindle.named_data import CHOSEN, choose
from rekindle.serving.batch import Batcher

SUMS = """
import sys
sys.path.insert(0, {apps!r})
from summing import Summing

DATA = {{"numbers": rekindle.Data({url!r}, dtype="int32", shape={count}, override={override!r}),
         "fixed": rekindle.Data({url!r}, dtype="int32", shape={count})}}

@app.cls(gpu="emulated", concurrency=2, sleep_window=0, data=DATA)
class Sum:
    @rekindle.enter()
    def begin(self):
        self.gpu = Summing()

    @rekindle.enter(restored=True)
    def wake(self):
        self.woken = self.numbers.url

    @rekindle.method()
    def total(self):
        return self.gpu.few(self.numbers.load())

    @rekindle.method()
    def both(self):
        return [self.gpu.few(self.numbers.load()), self.gpu.few(self.fixed.load())]

    @rekindle.method()
    def url(self):
        return [self.numbers.url, self.woken]

    @rekindle.method()
    async def later(self):
        return self.numbers.url
"""

SITE = """
@app.cls(gpu="emulated", sleep_window=0, data={{"numbers": rekindle.Data({url!r}, dtype="int32", shape=1, override=True)}})
class Site:
    @rekindle.asgi_app()
    def web(self):
        async def application(scope, receive, send):
            if scope["type"] != "http":
                return
            await send({{"type": "http.response.start", "status": 200, "headers": []}})
            await send({{"type": "http.response.body", "body": self.numbers.url.encode()}})
        return application
"""


@pytest.fixture
def node():
    with node_with() as one:
        yield one


def file(node, name, seed):
    array = numbers(seed)
    place = node.rekindle.root / "models" / name
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(array.tobytes())
    return array, place.as_uri()


def deploy(node, url, override=True):
    node.deployer.app("sums", SUMS.format(apps=str(APPS), url=url, count=COUNT, override=override))
    return package.Cls.from_name("sums", "Sum")()


def status(node, service, header, path="/"):
    """What a client without this package is told."""
    connection = http.client.HTTPConnection("127.0.0.1", node.deployer.service(service)["port"])
    connection.request("GET", path, headers={"Rekindle-Data": header})
    response = connection.getresponse()
    said = response.read().decode()
    connection.close()
    return response.status, said


def test_a_call_has_the_object_that_it_names_and_others_have_what_is_declared(node):
    own, url = file(node, "own", 1)
    sums = deploy(node, url)
    others = [file(node, f"other {number}", 2 + number) for number in range(3)]
    # The first of all calls, too: what an instance enters with is nobody's.
    named = sums.url.with_data(numbers=others[0][1])
    assert named.remote() == [others[0][1], url]
    assert sums.both.with_data(numbers=others[0][1]).remote() == [expected(others[0][0]), expected(own)]
    before = node.deployer.service("sums-Sum")["gpu_bytes"]
    calls = [(array, sums.total.with_data(numbers=other).spawn()) for array, other in others] + [(own, sums.total.spawn())]
    assert [call.get(timeout=60) for _, call in calls] == [expected(array) for array, _ in calls]
    assert sums.later.with_data(numbers=others[1][1]).remote() == others[1][1]
    assert sums.later.remote() == url
    # What was named goes from the GPU with its call; what is declared stays.
    node.rekindle.wait(lambda: node.deployer.service("sums-Sum")["gpu_bytes"] <= before + own.nbytes, "the GPU memory to be given back")


def test_what_is_named_is_fetched_when_the_request_comes(node):
    _, url = file(node, "own", 1)
    sums = deploy(node, url)
    _, other = file(node, "other", 2)
    # Nothing in the instance asks for it.
    assert sums.url.with_data(numbers=other).remote() == [other, url]
    node.rekindle.wait(lambda: f"fetched {other}" in node.log(), "the object")


def test_a_beginning_says_what_may_be_named(node):
    own, url = file(node, "own", 1)
    models = url.rpartition("/")[0]
    outside = node.rekindle.root / "secret"
    outside.write_bytes(own.tobytes())
    sums = deploy(node, url, override=f"{models}/")
    array, other = file(node, "other", 2)
    assert sums.total.with_data(numbers=other).remote() == expected(array)
    with pytest.raises(package.DataAccessError, match=f"whose URL begins with {models}/"):
        sums.total.with_data(numbers=outside.as_uri()).remote()
    with pytest.raises(package.DataNameError, match="without `..`"):
        sums.total.with_data(numbers=f"{models}/../secret").remote()


def test_what_cannot_be_had_is_said_in_a_sentence(node):
    own, url = file(node, "own", 1)
    sums = deploy(node, url)
    missing = url + "-missing"
    with pytest.raises(package.DataNotFoundError, match=f"{missing} is not there"):
        sums.total.with_data(numbers=missing).remote()
    with pytest.raises(package.DataNameError, match="no declared data 'other'".replace("'", '"')):
        sums.total.with_data(other=url).remote()
    with pytest.raises(package.DataAccessError, match="no other data than its own"):
        sums.total.with_data(fixed=url).remote()
    with pytest.raises(package.DataAccessError, match="begins with file:///"):
        sums.total.with_data(numbers="s3://bucket/key").remote()
    for header, code in (
        ("numbers", 400),
        (f"numbers={url}?a", 400),
        (f"numbers={url},numbers={url}", 400),
        (f"other={url}", 404),
        (f"numbers={missing}", 404),
        (f"fixed={url}", 403),
        ("numbers=s3://bucket/key", 403),
    ):
        found, said = status(node, "sums-Sum", header)
        assert found == code and said.count("\n") == 1, (header, found, said)
    assert sums.total.remote() == expected(own)


def test_a_size_that_is_not_the_declared_one_is_the_calls_own_error(node):
    own, url = file(node, "own", 1)
    sums = deploy(node, url)
    place = node.rekindle.root / "models" / "small"
    place.write_bytes(own.tobytes()[:-4])
    with pytest.raises(package.DataSizeError, match=f"^{place.as_uri()} has"):
        sums.total.with_data(numbers=place.as_uri()).remote()
    assert sums.total.remote() == expected(own)


def test_applications_find_what_is_named_too(node):
    _, url = file(node, "own", 1)
    _, other = file(node, "other", 2)
    node.deployer.app("pages", SITE.format(url=url))
    assert status(node, "pages-Site", f"numbers={other}") == (200, other)
    assert status(node, "pages-Site", f"numbers={url}") == (200, url)


def test_a_batch_has_one_object():
    data = Data("s3://bucket/own", dtype="int8", shape=1, override=True)

    async def run(function):
        return function()

    def urls(_self, numbers):
        return [(CHOSEN.get().get(data, data).url, len(numbers))] * len(numbers)

    async def main():
        batcher = Batcher(functools.partial(urls, None), Batched(8, 1), run)

        async def call(*headers):
            CHOSEN.set(choose({"weights": data}, headers))
            return await batcher.call([1], {})

        return await asyncio.gather(
            *(call(*headers) for headers in [[], ["weights=s3://bucket/a"], ["weights=s3://bucket/a"], ["weights=s3://bucket/b"], []])
        )

    assert asyncio.run(main()) == [
        ("s3://bucket/own", 2),
        ("s3://bucket/a", 2),
        ("s3://bucket/a", 2),
        ("s3://bucket/b", 1),
        ("s3://bucket/own", 2),
    ]


def test_what_may_be_named_is_declared_in_words_that_mean_something():
    made = functools.partial(Data, "s3://bucket/own", dtype="int8", shape=1)
    assert made().overrides == ()
    assert made(override=True).overrides == ("s3://bucket/",)
    assert made(override=["s3://bucket/my models/", "gs://other/"]).overrides == ("s3://bucket/my%20models/", "gs://other/")
    for wrong in ("bucket/", "s3://bucket", ["ftp://x/"], [1]):
        with pytest.raises(package.DeclarationError, match="override is"):
            made(override=wrong)
    with pytest.raises(package.DeclarationError, match="only read"):
        made(override=True, mode="rw")


def test_a_function_with_data_of_its_own_cannot_run_here():
    function = package.Function.from_name("app", "f")
    with pytest.raises(package.DeclarationError, match="names no data"):
        function.with_data(weights="bucket/key")
    with pytest.raises(TypeError, match="use .remote"):
        function.with_data(weights="s3://bucket/key").local()
