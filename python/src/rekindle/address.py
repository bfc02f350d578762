"""Where the service of a function is."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rekindle import command
from rekindle.errors import DeclarationError, NotFoundError

# The service that all functions without Python of an app have together.
RUNNER = "runner"
# Where services are by their URLs' schemes if no port is said.
PORTS = {"http": 80, "https": 443}
# Every address of the machine's, this program's too.
EVERYWHERE = {None: "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


# What says that this program is in a sandbox.
RUN = "REKINDLE_RUN"
# A token of the tenant whose services are called.
TOKEN_VARIABLE = "REKINDLE_TOKEN"
# That tenant, before others that have services of these names.
TENANT_VARIABLE = "REKINDLE_TENANT"
# In place of a tenant: what is nobody's.
NOBODY = "none"


@dataclass(frozen=True)
class Place:
    """Where a service listens."""

    host: str
    port: int
    # Whether it may be shown a token: what is nobody's would hand it to its program.
    takes_token: bool
    # Where it is found from a sandbox, which may reach no port, and where its port speaks TLS.
    socket: str | None = None
    # Its port speaks TLS, and this file has the authorities that are trusted for it; none: those of the environment, or the system's.
    tls: bool = False
    ca: str | None = None


@dataclass
class Service:
    """The service of one function or class. Without a URL the daemon is asked where it listens."""

    app: str
    name: str
    url: str | None = None
    # Of the tenant whose service it is; none: that of the environment.
    token: str | None = field(default=None, repr=False)
    # Whose service it is; none: it is not known, and may be anybody's.
    tenant: str | None = None
    # A file of the authorities that are trusted where the URL is https; none: those of the environment, or the system's.
    ca: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.app}-{self.name}"

    def authorization(self, place: Place) -> dict[str, str]:
        """The header that shows the token, if there is one."""
        token = self.token or os.environ.get(TOKEN_VARIABLE, "")
        if not place.takes_token or not token:
            return {}
        if not token.isascii() or not token.isprintable() or " " in token:
            raise DeclarationError(
                f"the token for {self.full_name} is none that `rekindle tenant token` prints; give it without blanks and line ends"
            )
        return {"Authorization": f"Bearer {token}"}

    def find(self) -> Place:
        """As it is now."""
        if self.url is not None:
            return self.place_of(self.url)
        row = self.row()
        # What speaks TLS has names that this machine need not go by; its socket is for programs here.
        socket = row.get("socket") if RUN in os.environ or row.get("tls") else None
        return Place(EVERYWHERE.get(row["address"], row["address"]), row["port"], row["tenant"] is not None, socket)

    def place_of(self, url: str) -> Place:
        """The URL's."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or PORTS[parts.scheme]
        except (KeyError, ValueError):
            host, port = None, 0
        if not host or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
            raise DeclarationError(f"{url!r} is no address of a service; give one such as https://host:8443 or http://host:8000")
        is_secure = parts.scheme == "https"
        if self.ca and not is_secure:
            raise DeclarationError(f"{url!r} is spoken to without TLS, for which no authority is asked; give https:// or no `ca`")
        return Place(host, port, takes_token=True, tls=is_secure, ca=self.ca)

    def row(self) -> dict[str, Any]:
        """What `rekindle services` says of it."""
        asked = command.ask("services")
        rows = [*asked["services"], *asked["workflows"]]
        # Functions without Python have one service together.
        for name in (self.full_name, f"{self.app}-{RUNNER}"):
            row: dict[str, Any] | None = self.choose({row["tenant"]: row for row in rows if row["name"] == name})
            if row:
                return row
        whose = f" for the tenant {self.tenant!r}" if self.tenant else ""
        raise NotFoundError(f"nothing is deployed as {self.name!r} of the app {self.app!r}{whose}; run `rekindle deploy` with its file")

    def choose(self, owned: dict[str | None, Any]) -> Any:
        """Of the services of one name, by their tenants, the one that is meant."""
        if self.tenant:
            return owned.get(None if self.tenant == NOBODY else self.tenant)
        for tenant in (os.environ.get(TENANT_VARIABLE) or None, None):
            if tenant in owned:
                return owned[tenant]
        if len(owned) > 1:
            names = ", ".join(sorted(str(tenant) for tenant in owned))
            raise NotFoundError(
                f"each of the tenants {names} has {self.name!r} of the app {self.app!r}; say by `tenant=`, or in {TENANT_VARIABLE}, whose is meant"
            )
        return next(iter(owned.values()), None)
