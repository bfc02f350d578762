"""What this program trusts of a service that speaks TLS, and the sentence for one that it does not trust."""

from __future__ import annotations

import datetime
import functools
import os
import socket
import ssl
from typing import Any

from rekindle.errors import DeclarationError, TlsError

# A file of authorities in PEM, in place of the system's.
CA_VARIABLE = "REKINDLE_CA"
# The gateway carries one request after the other on a connection.
PROTOCOLS = ["http/1.1"]
# Seconds until a connection is there, and TLS is begun on it.
BEGINS_WITHIN = 30.0

# As OpenSSL numbers what is wrong with a certificate (`X509_V_ERR_*` of x509_vfy.h).
NOT_YET_VALID, EXPIRED = 9, 10
UNKNOWN_ISSUER = (2, 18, 19, 20, 21)
OTHER_NAME = (62, 64)
# What a plain HTTP server's answer is taken for.
NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")
# How an alert of TLS begins, which is no line of HTTP.
ALERT = "\x15\x03"


def authorities(ca: str | None) -> str | None:
    """The file that has them; none: the system does."""
    return ca or os.environ.get(CA_VARIABLE) or None


def context(ca: str | None) -> ssl.SSLContext:
    """Trusts the authorities of this file, of that in the environment, or else the system's. A file that was changed is read again."""
    # All programs that go on from one image have the same state of random numbers.
    ssl.RAND_add(os.urandom(32), 32.0)
    file = authorities(ca)
    if file is None:
        return made(None, 0, 0)
    try:
        found = os.stat(file)
        return made(file, found.st_mtime_ns, found.st_size)
    except ssl.SSLError as error:
        raise DeclarationError(f"{file} has no certificate in PEM ({error.reason or error}); give the file of an authority's") from error
    except OSError as error:
        raise DeclarationError(f"the file of authorities {file} cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=8)
def made(file: str | None, _changed: int, _size: int) -> ssl.SSLContext:
    trusting = ssl.create_default_context(cafile=file)
    trusting.set_alpn_protocols(PROTOCOLS)
    return trusting


def refusal(host: str, port: int, ca: str | None, error: ssl.SSLError) -> TlsError:
    """Why TLS did not begin with a service."""
    where = f"the service at {host} port {port}"
    if not isinstance(error, ssl.SSLCertVerificationError):
        if error.reason in NO_TLS:
            return TlsError(f"{where} speaks no TLS; give its address as http://{host}:{port}")
        return TlsError(f"TLS with {where} failed: {error.reason or error}; it is to speak TLS 1.2 or 1.3")
    whose = f"the certificate of {where}"
    clock = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    match error.verify_code:
        case code if code == EXPIRED:
            return TlsError(f"{whose} has expired by this machine's clock ({clock}); have it renewed, or set the clock")
        case code if code == NOT_YET_VALID:
            return TlsError(f"{whose} is not valid yet by this machine's clock ({clock}); set the clock, or wait")
        case code if code in OTHER_NAME:
            return TlsError(f"{whose} is for {names(host, port, ca)}, and not for {host}; call it by a name that it is for")
        case code if code in UNKNOWN_ISSUER:
            file = authorities(ca)
            trusted = f"no authority of {file}" if file else "no authority that this system trusts"
            return TlsError(f"{whose} is signed by {trusted}; give the file of its authority as `ca`, or in {CA_VARIABLE}")
    return TlsError(f"{whose} cannot be trusted: {error.verify_message}")


def names(host: str, port: int, ca: str | None) -> str:
    """What a certificate is for whose authority is trusted."""
    trusting = ssl.create_default_context(cafile=authorities(ca))
    trusting.check_hostname = False
    try:
        with socket.create_connection((host, port), BEGINS_WITHIN) as plain, trusting.wrap_socket(plain) as secured:
            certificate: Any = secured.getpeercert() or {}
    except OSError:
        certificate = {}
    return ", ".join(name for _, name in certificate.get("subjectAltName", ())) or "other names"


def is_spoken(host: str, port: int) -> bool:
    """Whether a service speaks TLS, whoever it is. Nothing is sent to it."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), BEGINS_WITHIN) as plain, asking.wrap_socket(plain):
            return True
    except OSError:
        return False
