"""Ports of workflows that speak TLS, as those of services do."""

import http.client
import json
import ssl
import subprocess
import sys

import pytest
import rekindle as package
from conftest import Deployer
from harness import CommandError
from rekindle.codec import CONTENT_TYPE, decode, encode

APP = """
@app.function(max_containers=1)
def increase(number):
    return number + 1

twice = app.workflow("twice")
twice.step(increase, twice.step(increase))
"""
FIELDS = "app", "steps", "least", "expiry_ms", "timeout_ms", "most"


def certificate(directory):
    files = directory / "own.pem", directory / "own.key"
    subject = ["-subj", "/CN=own", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run(["openssl", "req", *kind, *subject, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def ask(port, context, **headers):
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    connection.request("POST", "/-/call/twice", b"".join(encode([[40], {}])), {"Content-Type": CONTENT_TYPE, **headers})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def row_of(rekindle):
    return rekindle.json("services")["workflows"][0]


@pytest.mark.parametrize("tenant", (None, "blue"))
def test_clients_of_a_workflow_speak_tls_and_show_tokens(rekindle, tmp_path, monkeypatch, tenant):
    token = rekindle.json("tenant", "create", "blue")["token"]["token"]
    deployer = Deployer(rekindle)
    file = deployer.write("flow", APP)
    rekindle("deploy", file, "--python", sys.executable, *(["--tenant", tenant] if tenant else []))
    pair, row = certificate(tmp_path), row_of(rekindle)
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps({field: row[field] for field in FIELDS}))
    words = "serve-workflow", graph, "--name", "flow-twice", "--tenant", tenant or "none"
    with pytest.raises(CommandError, match="cannot be used"):
        rekindle(*words, "--tls-certificate", pair[0], "--tls-key", graph)
    assert row_of(rekindle)["tls"] is None
    rekindle(*words, "--tls-certificate", pair[0], "--tls-key", pair[1])
    context = ssl.create_default_context(cafile=pair[0])
    shown = {"Authorization": f"Bearer {token}"} if tenant else {}
    status, content = ask(row["port"], context, **shown)
    assert (status, decode(content)) == (200, 42)
    if tenant:
        assert ask(row["port"], context)[0] == 401
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        plain = http.client.HTTPConnection("127.0.0.1", row["port"], timeout=60)
        plain.request("GET", "/-/about")
        plain.getresponse()
    # Programs of this machine come by its socket.
    monkeypatch.setenv("REKINDLE_TOKEN", token if tenant else "")
    call = package.Function.from_name("flow", "twice", tenant=tenant)
    assert call.remote(1) == 3
    # The next daemon has it again, and a deployment leaves it as it is.
    rekindle("shutdown")
    assert row_of(rekindle)["tls"] == {"certificate": str(pair[0]), "key": str(pair[1])}
    assert ask(row["port"], context, **shown)[0] == 200
    rekindle(*words)
    assert row_of(rekindle)["tls"] is not None
    rekindle(*words, "--no-tls")
    assert row_of(rekindle)["tls"] is None
    assert package.Function.from_name("flow", "twice", tenant=tenant).remote(1) == 3
