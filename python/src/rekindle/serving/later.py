"""Spans of requests that are not through when the heads of their answers go: the gateway asks for them when they are.

head: Rekindle-Spans-At: /-/spans/9f3c…  ─▶ gateway        … the last piece ─▶ GET /-/spans/9f3c… ─▶ Rekindle-Spans
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import OrderedDict
from collections.abc import Sequence

from rekindle import tracing

# Of an answer's head: where more is to be had once the answer is through.
AT = "Rekindle-Spans-At"
PATH = "/-/spans/"
# What nobody has asked for goes when there are more than so many.
MOST = 256
# Seconds until one that goes on is told as far as it has come.
PATIENCE = 0.5


class LateTrace:
    """Of one request that goes on."""

    def __init__(self, trace: tracing.Trace) -> None:
        self.trace, self.is_over = trace, asyncio.Event()


class LateTraces:
    """By the paths that they are asked for at."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, LateTrace] = OrderedDict()

    def promise(self, trace: tracing.Trace) -> tuple[LateTrace, tuple[str, str]]:
        """The header that says where."""
        path = f"{PATH}{secrets.token_hex(8)}"
        self.kept[path] = late = LateTrace(trace)
        while len(self.kept) > MOST:
            self.kept.popitem(last=False)
        return late, (AT, path)

    async def take(self, path: str) -> Sequence[tuple[str, str]] | None:
        """The spans as a header, as soon as they are over; none if there are none by this path."""
        late = self.kept.pop(path, None)
        if late is None:
            return None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(late.is_over.wait(), PATIENCE)
        return late.trace.told()
