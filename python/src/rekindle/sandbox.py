"""Sandboxes: programs that are run, taken and brought back. Each function waits; its `.aio` is for event loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rekindle import command
from rekindle.both import Both, both
from rekindle.errors import CommandError


class Sandbox:
    """A program in a sandbox, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"rekindle.Sandbox({self.name!r})"

    @both
    def info(self) -> dict[str, Any]:
        """As `rekindle ps --json` shows it."""
        rows = command.ask("ps", "--all")["sandboxes"]
        for row in rows:
            if row["name"] == self.name:
                found: dict[str, Any] = row
                return found
        raise CommandError(f"no sandbox is called {self.name!r}; `rekindle ps -a` shows those that are known", 1)

    @both
    def checkpoint(self, to: str, *, stop: bool = False, prove: bool = False) -> dict[str, Any]:
        """Takes an image; the program goes on unless it is to stop. The report."""
        return command.ask("checkpoint", self.name, "--to", to, "--stop" if stop else "--leave-running", *(["--prove"] if prove else []))

    @both
    def wait(self) -> int | None:
        """Waits until the program has ended: its exit code."""
        code: int | None = command.ask("wait", self.name)["exit_code"]
        return code

    @both
    def kill(self, signal: int | None = None) -> None:
        """Ends it, or sends it a signal."""
        command.ask("kill", self.name, *(["--signal", signal] if signal is not None else []))

    @both
    def sleep(self, level: str = "host") -> dict[str, Any]:
        """Gives its GPU back until its next GPU call."""
        return command.ask("sleep", self.name, "--level", level)

    @both
    def wake(self) -> dict[str, Any]:
        return command.ask("wake", self.name)

    @both
    def migrate(self, gpu: str) -> dict[str, Any]:
        """Moves it to another GPU of this machine. The report."""
        return command.ask("migrate", self.name, "--gpu", gpu)

    @both
    def logs(self, tail: int | None = None) -> str:
        """What it has printed."""
        text: str = command.ask("logs", self.name, *(["--tail", tail] if tail is not None else []))["log"]
        return text

    @both
    def remove(self) -> None:
        """Forgets it, once it has ended."""
        command.ask("rm", "--sandbox", self.name)


def start(
    *words: object,
    name: str | None = None,
    gpu: str | None = None,
    base: str | None = None,
    network: str | None = None,
    publish: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    directory: str | None = None,
) -> Sandbox:
    """Starts a program; `base` is a framework image."""
    options = [*placed(name, gpu, network, publish), *(["--from", base] if base else []), *(["--workdir", directory] if directory else [])]
    for variable, value in (env or {}).items():
        options += ["--env", f"{variable}={value}"]
    return Sandbox(command.ask("run", "-d", *options, "--", *words)["name"])


def bring_back(
    image: str,
    *,
    name: str | None = None,
    gpu: str | None = None,
    network: str | None = None,
    publish: Sequence[str] = (),
    verify: bool = False,
) -> Sandbox:
    """Continues the program of an image in a new sandbox."""
    report = command.ask("restore", image, "-d", *placed(name, gpu, network, publish), *(["--verify"] if verify else []))
    return Sandbox(report["name"])


def take(sandbox: Sandbox | str, to: str, *, stop: bool = False, prove: bool = False) -> dict[str, Any]:
    """Takes an image of a sandbox's program. The report."""
    return (sandbox if isinstance(sandbox, Sandbox) else Sandbox(sandbox)).checkpoint(to, stop=stop, prove=prove)


def placed(name: str | None, gpu: str | None, network: str | None, publish: Sequence[str]) -> list[str]:
    given = [("--name", name), ("--gpu", gpu), ("--network", network), *(("--publish", port) for port in publish)]
    return [word for option, value in given if value is not None for word in (option, value)]


run = Both(start)
restore = Both(bring_back)
checkpoint = Both(take)
