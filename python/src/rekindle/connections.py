"""Connections to services, kept and used again."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rekindle import tls
from rekindle.address import Place, Service
from rekindle.errors import TlsError

# A connection that was idle for longer is not used again: who it leads to may be about to close it.
IDLE = 15.0
# A message up to this size is one piece, and one write.
ONE_PIECE = 1 << 16

# Who refuses a request need not read it whole, and has answered then.
ANSWERED_BEFORE = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError)

Pieces = Sequence[bytes | memoryview]


class NotSent(Exception):
    """There is nobody, so that nothing was sent."""


class Lost(Exception):
    """The connection was lost before all of the answer came."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytearray


class Connections:
    """Those to one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.lock = threading.Lock()
        self.place: Place | None = None
        self.idle: list[tuple[float, http.client.HTTPConnection]] = []

    def request(self, method: str, path: str, body: Pieces = (), headers: dict[str, str] | None = None) -> Answer:
        """Sends it once. Looks again where the service is if nobody is there."""
        try:
            return self.once(method, path, body, headers or {})
        except NotSent:
            self.forget()
            return self.once(method, path, body, headers or {})

    def once(self, method: str, path: str, body: Pieces, headers: dict[str, str]) -> Answer:
        place = self.where()
        kept = self.kept()
        connection = kept or connect(place)
        headers = self.service.authorization(place) | headers
        length = sum(memoryview(piece).nbytes for piece in body)
        sent = b"".join(body) if length <= ONE_PIECE else iter(body)
        try:
            with contextlib.suppress(*ANSWERED_BEFORE):
                connection.request(method, path, sent, {"Content-Length": str(length), **headers})
            response = connection.getresponse()
            content = read(response)
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            if not kept and speaks_tls_instead(place, error):
                where = f"{place.host}:{place.port}"
                raise TlsError(f"the service at {place.host} port {place.port} speaks TLS; give its address as https://{where}") from error
            raise Lost(str(error) or type(error).__name__) from error
        except BaseException:
            connection.close()
            raise
        # An image that is taken of a program in a sandbox has none of these.
        if response.will_close or place.socket:
            connection.close()
        else:
            with self.lock:
                self.idle.append((time.monotonic(), connection))
        if response.status == http.client.UNAUTHORIZED:
            # Another service may be there by now, which is a tenant's.
            self.forget()
        return Answer(response.status, response.headers, content)

    def kept(self) -> http.client.HTTPConnection | None:
        """One that is still good."""
        while True:
            with self.lock:
                if not self.idle:
                    return None
                since, connection = self.idle.pop()
            if time.monotonic() - since < IDLE and connection.sock and not readable(connection):
                return connection
            connection.close()

    def where(self) -> Place:
        """As it was found last."""
        with self.lock:
            place = self.place
        if place is None:
            place = self.service.find()
            with self.lock:
                self.place = place
        return place

    def forget(self) -> None:
        with self.lock:
            self.place = None
            idle, self.idle = self.idle, []
        for _, connection in idle:
            connection.close()


def connect(place: Place) -> http.client.HTTPConnection:
    where = place.socket or f"{place.host} port {place.port}"
    connection = made(place)
    try:
        connection.connect()
        # An answer may take as long as it takes.
        connection.sock.settimeout(None)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        connection.close()
        raise NotSent(f"who listens at {where} ended the connection before TLS was begun: {error}") from error
    except ssl.SSLError as error:
        connection.close()
        raise tls.refusal(place.host, place.port, place.ca, error) from error
    except OSError as error:
        connection.close()
        raise NotSent(f"nobody listens at {where}: {error}") from error
    return connection


def made(place: Place) -> http.client.HTTPConnection:
    """One that is yet to be connected."""
    if place.socket:
        return BySocket(place.socket)
    if place.tls:
        return http.client.HTTPSConnection(place.host, place.port, timeout=tls.BEGINS_WITHIN, context=tls.context(place.ca))
    return http.client.HTTPConnection(place.host, place.port)


def speaks_tls_instead(place: Place, error: Exception) -> bool:
    """Whether a service has given no answer to HTTP because it is to be spoken to with TLS: then it has done nothing."""
    if place.tls or place.socket:
        return False
    if isinstance(error, http.client.RemoteDisconnected | ConnectionError):
        return tls.is_spoken(place.host, place.port)
    return isinstance(error, http.client.BadStatusLine) and str(error.args[0]).startswith(tls.ALERT)


class BySocket(http.client.HTTPConnection):
    """To a socket in the file system."""

    def __init__(self, place: str) -> None:
        super().__init__("localhost")
        self.place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.connect(self.place)
        except OSError:
            self.sock.close()
            raise


def readable(connection: http.client.HTTPConnection) -> bool:
    """Whether its end has come: nobody says anything unasked."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def read(response: http.client.HTTPResponse) -> bytearray:
    """The body, where arrays may lie and be changed."""
    if response.length is None:
        return bytearray(response.read())
    content = bytearray(response.length)
    view = memoryview(content)
    while view:
        count = response.readinto(view)
        if not count:
            raise http.client.IncompleteRead(b"", len(view))
        view = view[count:]
    return content
