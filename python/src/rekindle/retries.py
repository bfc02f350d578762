"""How often a call that failed is made again."""

from __future__ import annotations

from dataclasses import dataclass

from rekindle.errors import DeclarationError


@dataclass(frozen=True)
class Retries:
    """Up to `max_retries` further tries; the first after `initial_delay` seconds, each later one after `backoff` times as long."""

    max_retries: int
    initial_delay: float = 0.1
    backoff: float = 2.0
    max_delay: float = 30.0

    def __post_init__(self) -> None:
        if self.max_retries < 0 or self.initial_delay < 0 or self.backoff < 1 or self.max_delay < 0:
            raise DeclarationError(f"{self} cannot be: numbers are 0 or more, and backoff is 1 or more")

    def delay(self, failures: int) -> float:
        """Seconds until the next try, after so many."""
        return min(self.max_delay, self.initial_delay * self.backoff ** (failures - 1))

    def span(self) -> float:
        """Seconds until the last try of those that fail at once."""
        return sum(self.delay(failures) for failures in range(1, self.max_retries + 1))


NONE = Retries(0)
