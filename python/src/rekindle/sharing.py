"""With whom the instances of a function share GPU contexts: by default with those of its app's other functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rekindle.errors import DeclarationError

# In place of a name, for `rekindle`: with nobody.
NOBODY = "none"
# The mode in which a program's GPU context is NVIDIA's driver's, and nobody else's.
DRIVER = "driver"
# What needs Rekindle's worker, besides sharing.
OF_WORKERS = ("base", "sleep_stages", "sleep_window")
# What an instance has of the contexts that it shares.
PARTS = ("link_weight", "sm_share", "sm_weight", "sm_most", "share_memory", "variants")


def of_app(app: str) -> str:
    """By which its functions share. No other name has a colon."""
    return f"app:{app}"


def settled(options: Mapping[str, Any], name: str, default: str | None) -> dict[str, Any]:
    """The options with the name by which it shares, or None. `default` is that where nothing is said of it."""
    said, needing = options.get("share"), needs_own(options)
    if said is not False and not isinstance(said, str | None) or said in ("", NOBODY):
        raise DeclarationError(f"{name}: share is {said!r}; give a name, or False for a context of its own")
    if options.get("sleep_stages") and "sleep_window" in options:
        raise DeclarationError(f"{name}: sleep_stages and sleep_window are both given; give one of them")
    if said and options.get("sleep_stages"):
        raise DeclarationError(
            f"{name}: sleep_stages is for instances that sleep, and those that share GPU contexts do not; leave out sleep_stages or share"
        )
    if options.get("mode") == DRIVER:
        for option in ("share", *OF_WORKERS):
            if options.get(option):
                raise DeclarationError(f"{name}: {option} is {options[option]!r}, which there is not in mode {DRIVER}; leave it out, or mode")
        options = {**options, "sleep_window": 0.0}
    if said or said is None and default and not needing:
        # What does not sleep is there for as long as it keeps its GPU, unless more is said.
        window = {} if said or "sleep_window" in options else {"sleep_window": 0.0}
        return {**options, "share": said or default, **window}
    for part in PARTS:
        if options.get(part) is not None and (part, options[part]) != ("variants", 1):
            raise DeclarationError(f"{name}: {part} is for instances that share GPU contexts; {way_out(said, needing)}")
    return {**options, "share": None}


def needs_own(options: Mapping[str, Any]) -> str | None:
    """The option by which an instance is to have a context of its own, though nothing is said of sharing."""
    window = options.get("sleep_window")
    if isinstance(window, int | float) and window > 0:
        return "sleep_window"
    if options.get("sleep_stages"):
        return "sleep_stages"
    if options.get("mode"):
        return "mode"
    return "base" if options.get("base") else None


def way_out(said: object, needing: str | None) -> str:
    if said is False:
        return "leave out share=False"
    return f"leave out {needing}, which gives it one of its own" if needing else "give a name (share) too"
