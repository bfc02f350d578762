"""Services whose clients speak TLS: certificates, their renewal, and what is refused."""

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import subprocess

import pytest
from rekindle import PATIENCE, CommandError
from test_services import Web, begun


@pytest.fixture
def rekindle():
    with begun() as instance:
        yield instance


def certificate(directory, name, host="127.0.0.1"):
    """A certificate for itself, and its key."""
    files = directory / f"{name}.pem", directory / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{host}", "-days", "2"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run(["openssl", "req", *kind, *subject, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


class Secure:
    """What a client sees that trusts one certificate."""

    def __init__(self, web, trusted):
        self.web, self.context = web, ssl.create_default_context(cafile=trusted)

    def get(self, path="/"):
        connection = http.client.HTTPSConnection("127.0.0.1", self.web.port, context=self.context, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200
            return json.loads(answer.read())

    def protocol(self, *offered):
        """What is chosen of these."""
        self.context.set_alpn_protocols(list(offered))
        with self.connect() as secured:
            return secured.selected_alpn_protocol()

    def connect(self):
        plain = socket.create_connection(("127.0.0.1", self.web.port), timeout=PATIENCE)
        try:
            return self.context.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise

    def is_trusted(self):
        try:
            return self.protocol("http/1.1") == "http/1.1"
        except ssl.SSLCertVerificationError:
            return False


def test_clients_speak_tls_and_a_renewed_certificate_needs_no_restart(rekindle, tmp_path):
    first, second = certificate(tmp_path, "first"), certificate(tmp_path, "second")
    used = tmp_path / "used.pem", tmp_path / "used.key"
    for source, place in zip(first, used):
        shutil.copy(source, place)
    web = Web(rekindle, "--tls-certificate", used[0], "--tls-key", used[1])
    client = Secure(web, first[0])
    answer = client.get()
    assert answer["headers"]["x-forwarded-proto"] == "https" and answer["headers"]["host"] == f"127.0.0.1:{web.port}"
    assert client.protocol("h2", "http/1.1") == "h2" and client.protocol("http/1.1") == "http/1.1"
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        web.get()
    # Renewed, the key before the certificate: with half of it nothing changes.
    shutil.copy(second[1], used[1])
    rekindle.wait(lambda: "stays in use" in (web.shown()["problem"] or ""), "the half to be seen")
    assert client.is_trusted()
    shutil.copy(second[0], used[0])
    renewed = Secure(web, second[0])
    rekindle.wait(renewed.is_trusted, "the new certificate")
    assert web.shown()["problem"] is None and not client.is_trusted()
    # The next daemon has it, too.
    rekindle("shutdown")
    rekindle.wait(web.is_closed, "its port to be closed")
    assert web.shown()["tls"] == {"certificate": str(used[0]), "key": str(used[1])}
    rekindle.wait(lambda: not web.is_closed(), "its port")
    assert renewed.get()["tag"] == "one"
    web.serve("one", "--no-tls")
    assert web.get()["headers"]["x-forwarded-proto"] == "http" and web.shown()["tls"] is None


def test_http_2_is_spoken_by_choice(rekindle, tmp_path):
    certified = certificate(tmp_path, "one")
    web = Web(rekindle, "--tls-certificate", certified[0], "--tls-key", certified[1])
    client = Secure(web, certified[0])
    client.context.set_alpn_protocols(["h2"])
    with client.connect() as secured:
        # The preface, and settings without any: the server's settings come back.
        secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert secured.recv(9)[3] == 4


def test_what_is_no_certificate_is_refused_before_anything_changes(rekindle, tmp_path):
    first, second = certificate(tmp_path, "first"), certificate(tmp_path, "second")
    web = Web(rekindle)
    (tmp_path / "empty").touch()
    before = web.shown()

    def refused(certificate, key):
        with pytest.raises(CommandError) as error:
            web.serve("one", "--max", 9, "--tls-certificate", certificate, "--tls-key", key)
        assert error.value.message.count("\n") == 0
        assert (web.shown()["plan"], web.shown()["tls"]) == (before["plan"], None)
        return error.value.message

    assert "gone.pem cannot be read" in refused(tmp_path / "gone.pem", first[1])
    assert "empty has no certificate; expected one in PEM" in refused(tmp_path / "empty", first[1])
    assert "first.pem has no private key" in refused(first[0], first[0])
    assert "cannot be used with the key" in refused(first[0], second[1])
    assert "no regular file" in refused(tmp_path, first[1])
    assert web.get()["tag"] == "one"
    with pytest.raises(CommandError, match="--tls-key"):
        web.serve("one", "--tls-certificate", first[0])
