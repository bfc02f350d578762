"""Loads one function or class of an app's file, gets it ready, says so, and serves it until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rekindle.client import ABOUT
from rekindle.codec import VERSION, decode, encode
from rekindle.declaration import Declaration
from rekindle.errors import Error
from rekindle.loading import load
from rekindle.raised import describe, text_of
from rekindle.serving import asgi, http
from rekindle.serving.dispatch import Dispatch
from rekindle.serving.failures import Raised
from rekindle.serving.target import Target

HOST, PORT = "127.0.0.1", 8000


def main(file: str, name: str, report: str) -> None:
    code = 1
    try:
        declaration = load(Path(file)).declarations[name]
    except BaseException as error:
        tell(Path(report), **problem(file, name, error))
    else:
        code = asyncio.run(serve(declaration, file, Path(report)))
    # Threads of calls that were given up may go on for ever.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


async def serve(declaration: Declaration, file: str, report: Path) -> int:
    """Until its end, which has this exit code."""
    target, over, codes = Target(declaration), asyncio.Event(), [0]

    def end(code: int) -> None:
        codes.append(code)
        over.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)
    try:
        await get_ready(target, end)
    except BaseException as error:
        tell(report, **problem(file, declaration.service.name, error))
        return 1
    tell(report, ready=True, message=VERSION)
    await over.wait()
    # An instance that could not enter has nothing to leave.
    if max(codes):
        return 1
    try:
        await target.leave()
    except Raised as raised:
        print("rekindle: a method with @rekindle.exit() failed:", file=sys.stderr)
        traceback.print_exception(raised.error)
        return 1
    return 0


async def get_ready(target: Target, end: Callable[[int], None]) -> None:
    await target.enter()
    dispatch = Dispatch(target, lambda: end(1))
    asgi_apps = [name for name, mark in target.declaration.marks() if mark.is_asgi]
    if asgi_apps:
        application = await target.run(target.bound(asgi_apps[0]))
        serving = await asgi.listen(application, dispatch, HOST, PORT)
        serving.add_done_callback(lambda _: end(0))
    else:
        await http.listen(dispatch, HOST, PORT)
    await warm()


async def warm() -> None:
    """What the first call would import and set up is in the image, and objects that stay are not looked at again."""
    decode(b"".join(encode([1, "text", (2.5, None)])))
    describe(ValueError())
    if "numpy" in sys.modules:
        decode(b"".join(encode(sys.modules["numpy"].zeros(1))))
    reader, writer = await asyncio.open_connection(HOST, PORT)
    writer.write(f"GET {ABOUT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    gc.collect()
    gc.freeze()


def problem(file: str, name: str, error: BaseException) -> dict[str, Any]:
    """What is to be said of a program that does not get ready."""
    if isinstance(error, Raised):
        error = error.error
    if isinstance(error, Error):
        return {"error": str(error), "traceback": ""}
    said = traceback.format_exception_only(error)[-1].strip()
    return {"error": f"{name} of {file} did not get ready: {said}", "traceback": text_of(error)}


def tell(report: Path, **said: Any) -> None:
    """Whoever waits for the file finds it whole."""
    part = report.with_suffix(".part")
    part.write_text(json.dumps(said))
    part.rename(report)
