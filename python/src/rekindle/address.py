"""Where the service of a function is."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from rekindle import command
from rekindle.errors import DeclarationError, NotFoundError

# Every address of the machine's, this program's too.
EVERYWHERE = {None: "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Service:
    """The service of one function or class. Without a URL the daemon is asked where it listens."""

    app: str
    name: str
    url: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.app}-{self.name}"

    def find(self) -> tuple[str, int]:
        """Host and port, as they are now."""
        if self.url is not None:
            parts = urlsplit(self.url)
            if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
                raise DeclarationError(f"{self.url!r} is no address of a service; give one such as http://host:8000")
            return parts.hostname, parts.port or 80
        for row in command.ask("services")["services"]:
            if row["name"] == self.full_name:
                return EVERYWHERE.get(row["address"], row["address"]), row["port"]
        raise NotFoundError(f"nothing is deployed as {self.name!r} of the app {self.app!r}; run `rekindle deploy` with its file")
