"""Text that grows token by token, and ends where it is told to."""

from __future__ import annotations

from collections.abc import Sequence

from rekindle.inference.engine import Tokenizer

# A character may be of so many tokens; until all are there it is shown as this one.
PARTS, UNFINISHED = 4, "\ufffd"


class Growing:
    """Text of tokens. What a token adds may depend on those just before it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        # Tokens from `since` on are decoded together, and those before `until` have been shown.
        self.since = self.until = 0

    def add(self, token: int) -> str:
        self.tokens.append(token)
        return self.new(is_last=False)

    def new(self, *, is_last: bool) -> str:
        """What is not shown yet, without a character that is not whole."""
        shown = self.tokenizer.decode(self.tokens[self.since : self.until])
        text = self.tokenizer.decode(self.tokens[self.since :])
        if text.endswith(UNFINISHED) and not is_last and len(self.tokens) - self.until < PARTS:
            return ""
        self.since, self.until = self.until, len(self.tokens)
        return text[len(shown) :]


class Stops:
    """Keeps back what may be the beginning of a text that ends it all."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.kept = ""

    def add(self, text: str) -> tuple[str, bool]:
        """What can be shown, and whether it ends here."""
        self.kept += text
        found = [at for stop in self.stops if (at := self.kept.find(stop)) >= 0]
        if found:
            shown, self.kept = self.kept[: min(found)], ""
            return shown, True
        back = max((length for stop in self.stops for length in range(1, len(stop)) if self.kept.endswith(stop[:length])), default=0)
        at = len(self.kept) - back
        shown, self.kept = self.kept[:at], self.kept[at:]
        return shown, False

    def rest(self) -> str:
        shown, self.kept = self.kept, ""
        return shown
