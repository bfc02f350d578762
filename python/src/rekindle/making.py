"""Images of functions: the program that serves one is started in a sandbox, gets ready, and is taken."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rekindle.serving
from rekindle import command, frameworks, interrupts
from rekindle.codec import FIRST
from rekindle.declaration import Declaration
from rekindle.errors import CommandError, Error
from rekindle.native import Native

PROGRAM = Path(rekindle.serving.__file__).with_name("__main__.py")
# The program of `rekindle image framework` for Python.
FRAMEWORK = "framework.py"
EVERY = 0.02


class NotReadyError(Error):
    """User code did not get ready for its image."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


def new_name(declaration: Declaration) -> str:
    """Of a new image; the service's name, and before that its tenant's, are before an `@` each."""
    service = declaration.service
    owner = f"{service.tenant}@" if service.tenant else ""
    return f"{owner}{service.full_name}@{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"


@dataclass
class Made:
    """The names of new images of a declaration, as many as there are to be variants, and the version of messages that their programs understand."""

    images: list[str]
    message: int


def make(declaration: Declaration, file: Path, base: str | None) -> Made:
    """The images, each of a start of its own, all at once. Whatever fails, nothing is left."""
    first = new_name(declaration)
    images = [first, *(f"{first}.{number}" for number in range(2, declaration.limits.variants + 1))]
    sandboxes = {image: f"{image} in the making" for image in images}
    gpu = declaration.limits.first_gpu
    options = [*(["--gpu", gpu] if gpu else []), *declaration.limits.run_options(), *(["--from", base] if base else [])]
    warnings: list[str] = []
    messages: list[int] = []
    with tempfile.TemporaryDirectory(prefix="rekindle-", dir=place()) as directory:
        reports = {image: Path(directory, f"report-{number}.json") for number, image in enumerate(images)}
        try:
            for image in images:
                program = program_of(declaration, file, reports[image])
                with interrupts.held():
                    command.ask("run", "-d", "--name", sandboxes[image], "--network", "private", *options, "--", *program)
            for image in images:
                said = wait(declaration, sandboxes[image], reports[image])
                messages.append(said.get("message", FIRST))
                if isinstance(declaration, Native):
                    declaration.functions[:] = said["functions"]
            for image in images:
                with interrupts.held():
                    taken = command.ask("checkpoint", sandboxes[image], "--to", image, "--stop")
                    command.ask("rm", "--sandbox", sandboxes[image])
                warnings += taken["warnings"]
        except BaseException:
            with interrupts.held():
                for image in images:
                    remove(sandboxes[image], image)
            raise
    for warning in dict.fromkeys(warnings):
        print(f"rekindle: warning: {warning}", file=sys.stderr)
    return Made(images, min(messages))


def program_of(declaration: Declaration, file: Path, report: Path) -> list[object]:
    """The command that gets it ready, and serves it."""
    if isinstance(declaration, Native):
        return declaration.program(report)
    return [sys.executable, PROGRAM, file, declaration.service.name, report]


def place() -> str:
    """Where a sandbox finds files that are made here: its /dev/shm is its own."""
    usual = Path(tempfile.gettempdir()).resolve()
    return "/var/tmp" if usual.is_relative_to("/dev/shm") else str(usual)


def remove(sandbox: str, image: str) -> None:
    """Whatever there is of them."""
    for words in (("stop", "--timeout", 0, sandbox), ("rm", "--sandbox", sandbox), ("rmi", image)):
        with contextlib.suppress(CommandError):
            command.ask(*words)


def wait(declaration: Declaration, sandbox: str, report: Path) -> dict[str, Any]:
    """Until the program is ready: what it says of itself."""
    limit = declaration.limits.startup_timeout
    start = time.monotonic()
    nowhere = subprocess.DEVNULL
    end = subprocess.Popen([command.path(), "wait", sandbox], start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    try:
        while not report.exists():
            if end.poll() is not None and not report.exists():
                log = command.ask("logs", sandbox, "--tail", 20)["log"]
                raise NotReadyError(f"the program of {declaration.service.full_name} ended before it was ready", log)
            if time.monotonic() - start > limit:
                sentence = (
                    f"{declaration.service.full_name} was not ready after {limit:g} s; raise `startup_timeout`, or have its @rekindle.enter() do less"
                )
                raise NotReadyError(sentence, "")
            time.sleep(EVERY)
    finally:
        end.kill()
        end.wait()
    said: dict[str, Any] = json.loads(report.read_text())
    if "error" in said:
        raise NotReadyError(said["error"], said["traceback"])
    return said


def base_for(declaration: Declaration) -> str | None:
    """The framework image to start from: the declared one, else the newest that fits. Their programs are in no driver's mode."""
    limits = declaration.limits
    if limits.base is not None or limits.mode or isinstance(declaration, Native):
        return limits.base or None
    rows = command.ask("images")["images"]
    for row in sorted((row for row in rows if row["problem"] is None), key=lambda row: row["created"], reverse=True):
        # One that a deployment has made is of the apps that it was made for.
        if not frameworks.is_automatic(row["name"]) and is_made_ready(row["command"]) and fits(row["name"], declaration):
            return str(row["name"])
    return None


def is_made_ready(words: list[str]) -> bool:
    """Whether this is Rekindle's own framework program, in this very interpreter."""
    return len(words) > 1 and Path(words[1]).name == FRAMEWORK and shutil.which(words[0]) == sys.executable


def fits(image: str, declaration: Declaration) -> bool:
    """Whether it is a framework image, for such a GPU, whose apps may share contexts if this one is to."""
    shown = command.ask("inspect", image)
    gpu, kinds = declaration.limits.first_gpu, {one["kind"] for one in shown["gpus"]}
    is_for = gpu is None or not kinds or kinds == {gpu.partition(":")[0]}
    return bool(shown["framework"]) and is_for and frameworks.may_share(declaration, shown)
