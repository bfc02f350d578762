"""Exceptions of user code: as a message, and as exceptions again."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from rekindle.codec import decode, encode
from rekindle.errors import RemoteError, SerializationError

# Frames of this package say nothing of user code.
OWN = str(Path(__file__).parent)
# What the note begins with that has the traceback.
NOTE = "Traceback in the instance:\n"


def describe(error: BaseException) -> list[bytes | memoryview]:
    """The message of an exception."""
    kind = type(error)
    described = {
        "module": kind.__module__,
        "type": kind.__qualname__,
        "text": str(error),
        "args": sendable(arguments(error)),
        "state": {name: value for name, value in vars(error).items() if name != "__notes__" and sendable(value) is not None},
        "traceback": text_of(error),
    }
    return encode(described)


def arguments(error: BaseException) -> list[Any]:
    """What makes it anew: of some, such as OSError, that is more than `args`."""
    try:
        made_of = error.__reduce__()[1]
    except Exception:
        made_of = error.args
    return list(made_of if isinstance(made_of, tuple) else error.args)


def sendable(value: Any) -> Any:
    """The value, if it can be sent."""
    try:
        encode(value)
    except SerializationError:
        return None
    return value


def text_of(error: BaseException) -> str:
    """Its traceback, from user code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and not is_user_code(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def is_user_code(file: str) -> bool:
    return not file.startswith((OWN, "<frozen")) and "/concurrent/futures/" not in file and "/asyncio/" not in file


def rebuild(message: bytes | bytearray) -> Exception:
    """The exception, of its own type if that is known here."""
    described = decode(message)
    kind = find(described["module"], described["type"])
    note = NOTE + described["traceback"].rstrip()
    error = make(kind, described) if kind else None
    if error is None:
        name = described["type"] if described["module"] == "builtins" else f"{described['module']}.{described['type']}"
        error = RemoteError(f"{name}: {described['text']}", described["traceback"])
    error.add_note(note)
    return error


def make(kind: type[Exception], described: dict[str, Any]) -> Exception | None:
    """As it was, without its constructor's help if that wants something else than it keeps."""
    if described["args"] is None:
        return None
    try:
        error = kind(*described["args"])
    except Exception:
        try:
            error = kind.__new__(kind, *described["args"])
            error.args = tuple(described["args"])
        except Exception:
            return None
    error.__dict__.update(described["state"])
    return error


def find(module: str, name: str) -> type[Exception] | None:
    """The type of this name."""
    try:
        found: Any = here(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:
        return None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def here(module: str) -> ModuleType:
    """The program's own file is another module here than in the instance."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if module not in sys.modules and file and getattr(main, "__spec__", None) is None and Path(file).stem == module:
        return main
    return importlib.import_module(module)
