"""Calls by https: of functions, methods and workflows of another machine, and what is said of a certificate that is not trusted."""

import json
import ssl
import subprocess
import sys
import threading
import urllib.request

import numpy
import pytest
import rekindle as package
from authority import Authority
from conftest import Deployer, begun

APP = """
import numpy

@app.cls(concurrency=4, max_containers=1)
class Model:
    @rekindle.method()
    def double(self, array):
        return 2 * array

    @rekindle.method()
    def fail(self, what):
        raise KeyError(what)

    @rekindle.batched(max_batch_size=2, wait_ms=10000)
    def both(self, values):
        return [(value, len(values)) for value in values]

@app.function(retries=3)
def increase(number):
    return number + 1

flow = app.workflow("flow")
flow.step(increase, flow.step(increase))

@app.cls(concurrency=8, max_containers=1)
class Site:
    @rekindle.asgi_app()
    def web(self):
        async def pieces(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for piece in range(3):
                await send({"type": "http.response.body", "body": b"%d" % piece, "more_body": piece < 2})
        return pieces
"""
HOST = "127.0.0.1"


class Secured:
    """An app whose services speak TLS."""

    def __init__(self, deployer, directory):
        self.deployer, self.directory = deployer, directory
        self.authority = Authority(directory)
        deployer.app("tls", APP)
        self.use(*self.authority.certify("good", HOST, "localhost"))

    def rows(self):
        listed = self.deployer.rekindle.json("services")
        return {row["name"]: row for row in (*listed["services"], *listed["workflows"])}

    def serve(self, name, *words):
        self.deployer.rekindle("serve", self.rows()[name]["source"]["image"], "--name", name, *words)

    def use(self, certificate, key, *names):
        for name in names or [name for name in self.rows() if name != "tls-flow"]:
            self.serve(name, "--tls-certificate", certificate, "--tls-key", key)

    def url(self, name, scheme="https", host=HOST):
        return f"{scheme}://{host}:{self.rows()[f'tls-{name}']['port']}"

    def function(self, name="increase", **options):
        return package.Function.from_name("tls", name, **{"url": self.url(name), "ca": str(self.authority.file)} | options)


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    with begun() as rekindle:
        yield Secured(Deployer(rekindle), tmp_path_factory.mktemp("tls"))


@pytest.fixture
def model(secured):
    return package.Cls.from_name("tls", "Model", url=secured.url("Model"), ca=str(secured.authority.file))()


def test_arrays_batches_and_what_is_raised_come_as_without_tls(secured, model):
    array = numpy.arange(1 << 20, dtype="float32")
    numpy.testing.assert_array_equal(model.double.remote(array), 2 * array)
    assert sorted(model.both.map([1, 2], window=2)) == [(1, 2), (2, 2)]
    assert [call.get() for call in (model.double.spawn(1), model.double.spawn(2))] == [2, 4]
    with pytest.raises(KeyError, match="no"):
        model.fail.remote("no")
    assert list(secured.function().map(range(40), window=8)) == list(range(1, 41))


def test_a_connection_is_used_again(secured):
    function = secured.function()
    used = set()
    for number in range(5):
        assert function.remote(number) == number + 1
        ((_, connection),) = function.client.connections.idle
        used.add(connection)
    assert len(used) == 1 and connection.sock.version() == "TLSv1.3"


def test_a_stream_comes_by_tls(secured):
    context = ssl.create_default_context(cafile=secured.authority.file)
    with urllib.request.urlopen(secured.url("Site"), context=context) as answer:
        assert answer.read() == b"012"


def test_the_authority_may_be_the_environment_s(secured, monkeypatch):
    assert package.Function.from_name("tls", "increase").remote(1) == 2, "by its socket"
    with pytest.raises(package.TlsError, match="signed by no authority that this system trusts; give the file of its authority as `ca`"):
        secured.function(ca=None).remote(1)
    monkeypatch.setenv("REKINDLE_CA", str(secured.authority.file))
    assert secured.function(ca=None).remote(1) == 2
    assert secured.function(url=secured.url("increase", host="localhost"), ca=None).remote(1) == 2
    other = Authority(secured.directory, "other")
    with pytest.raises(package.TlsError, match="signed by no authority of .*other.pem"):
        secured.function(ca=str(other.file)).remote(1)
    # The file is replaced, and its authority trusted from then on.
    other.file.write_bytes(other.file.read_bytes() + secured.authority.file.read_bytes())
    assert secured.function(ca=str(other.file)).remote(1) == 2


def test_the_command_calls_other_machines(secured):
    def call(*words):
        command = [secured.deployer.rekindle.command, "call", "--python", sys.executable, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    assert call("tls-increase", "1", "--url", secured.url("increase"), "--ca", secured.authority.file) == (0, "2\n", "")
    code, out, said = call("tls-increase", "1", "--url", secured.url("increase"))
    assert (code, out) == (1, "") and "signed by no authority that this system trusts" in said and said.count("\n") == 1
    code, _, said = call("tls-increase", "1", "--ca", secured.authority.file)
    assert code == 2 and "--url" in said


def test_a_certificate_that_is_not_trusted_is_told_apart(secured):
    authority = secured.authority
    for certified, expected in (
        (authority.certify("elsewhere", "example.org", "10.1.2.3"), "is for example.org, 10.1.2.3, and not for 127.0.0.1"),
        (authority.certify("old", HOST, begins=-9, ends=-2), r"has expired by this machine's clock \(20.* UTC\)"),
        (authority.certify("new", HOST, begins=2, ends=9), r"is not valid yet by this machine's clock \(20.* UTC\)"),
    ):
        secured.use(*certified, "tls-increase")
        with pytest.raises(package.TlsError, match=expected):
            secured.function().remote(1)
    secured.use(*authority.certify("again", HOST, "localhost"), "tls-increase")
    assert secured.function().remote(1) == 2


def test_who_speaks_tls_and_who_does_not_is_told(secured):
    before = secured.rows()["tls-increase"]["served"]
    address = secured.url("increase").removeprefix("https://")
    with pytest.raises(package.TlsError, match=f"speaks TLS; give its address as https://{address}"):
        secured.function(url=f"http://{address}", ca=None).remote(1)
    assert secured.rows()["tls-increase"]["served"] == before
    secured.serve("tls-increase", "--no-tls")
    with pytest.raises(package.TlsError, match=f"speaks no TLS; give its address as http://{address}"):
        secured.function().remote(1)
    assert secured.function(url=f"http://{address}", ca=None).remote(1) == 2
    secured.use(*secured.authority.certify("third", HOST, "localhost"), "tls-increase")


def test_what_is_no_address_or_no_authority_is_refused(secured, tmp_path):
    for url in ("ftp://host", "https://", "https://host/path", "https://host:port", "https://me@host", "https://host?a"):
        with pytest.raises(package.DeclarationError, match="is no address of a service; give one such as https://"):
            secured.function(url=url).remote(1)
    with pytest.raises(package.DeclarationError, match="without TLS, for which no authority is asked"):
        secured.function(url="http://host").remote(1)
    with pytest.raises(package.DeclarationError, match="gone.pem cannot be read: No such file"):
        secured.function(ca=str(tmp_path / "gone.pem")).remote(1)
    (tmp_path / "empty.pem").touch()
    with pytest.raises(package.DeclarationError, match="empty.pem has no certificate in PEM"):
        secured.function(ca=str(tmp_path / "empty.pem")).remote(1)


def test_a_workflow_and_a_tenant_s_function_are_called_by_tls(secured):
    rekindle = secured.deployer.rekindle
    row, graph = secured.rows()["tls-flow"], secured.directory / "graph.json"
    graph.write_text(json.dumps({field: row[field] for field in ("app", "steps", "least", "expiry_ms", "timeout_ms", "most")}))
    certificate, key = secured.authority.certify("flow", HOST)
    rekindle("serve-workflow", graph, "--name", "tls-flow", "--tls-certificate", certificate, "--tls-key", key)
    assert secured.function("flow").remote(1) == 3


def test_many_threads_call_at_once(secured, model):
    wrong = []

    def calls(number):
        array = numpy.full(50_000, number)
        for _ in range(10):
            if not (model.double.remote(array) == 2 * number).all():
                wrong.append(number)

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
