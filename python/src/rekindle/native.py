"""Manifests of functions without Python: libraries whose functions one runner serves, each instance a thread of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rekindle import command
from rekindle.address import RUNNER, Service
from rekindle.app import App
from rekindle.data import Data
from rekindle.declaration import Declaration
from rekindle.errors import DeclarationError
from rekindle.limits import Limits
from rekindle.marks import Mark
from rekindle.retries import Retries

PROGRAM = "rekindle-runner"
# How many instances a runner has, of all functions together, unless `concurrency` says otherwise.
INSTANCES = 16
FIELDS = {"app": str, "tenant": str, "runner": str, "libraries": list, "options": dict, "data": dict}


@dataclass(frozen=True)
class Native(Declaration):
    """The runner of an app, with its libraries."""

    libraries: tuple[Path, ...] = ()
    # A program of the user's own that has functions, in place of Rekindle's.
    runner: Path | None = None
    # Those that it was found to have, once it was ready.
    functions: list[str] = field(default_factory=list)

    def marks(self) -> Iterator[tuple[str, Mark]]:
        return iter(())

    def program(self, report: Path) -> list[object]:
        limits, retries = self.limits, self.limits.retries
        options = {
            "--name": self.service.full_name,
            "--report": report,
            "--instances": limits.concurrency,
            "--idle": f"{limits.scaledown_window:f}",
            "--timeout": f"{limits.timeout:f}",
            "--max-retries": retries.max_retries,
            "--initial-delay": f"{retries.initial_delay:f}",
            "--backoff": f"{retries.backoff:f}",
            "--max-delay": f"{retries.max_delay:f}",
        }
        data = [f"{name}={one.dtype}:{'x'.join(map(str, one.shape))}:{one.url}" for name, one in self.data.items()]
        words = [word for pair in options.items() for word in pair]
        words += [word for one in data for word in ("--data", one)]
        return [self.runner or installed(), *words, "--", *self.libraries]


def installed() -> Path:
    """Beside the command."""
    found = Path(command.path()).resolve().with_name(PROGRAM)
    if not found.exists():
        raise DeclarationError(f"there is no {found}, which serves functions without Python; install Rekindle whole (`make install`)")
    return found


def is_manifest(file: Path) -> bool:
    return file.suffix == ".toml"


def read(file: Path) -> dict[str, Any]:
    """What a manifest says, as far as its fields are those that there are."""
    try:
        said = tomllib.loads(file.read_text())
    except OSError as error:
        raise DeclarationError(f"{file} cannot be read: {error.strerror}; name the manifest of the functions") from error
    except ValueError as error:
        raise DeclarationError(f"{file} is no TOML: {error}") from error
    for name, value in said.items():
        if name not in FIELDS:
            raise DeclarationError(f"{file}: there is no field {name!r}; there are {', '.join(FIELDS)}")
        if not isinstance(value, FIELDS[name]):
            raise DeclarationError(f"{file}: {name} is {value!r}; give a {FIELDS[name].__name__}")
    return said


def libraries(said: Mapping[str, Any], file: Path) -> list[Path]:
    """Paths are from the manifest's directory."""
    names = said.get("libraries", [])
    if not all(isinstance(name, str) and name for name in names):
        raise DeclarationError(f"{file}: libraries is {names!r}; give a list of paths")
    return [file.resolve().parent / name for name in names]


def load(file: Path) -> App:
    """An app with one declaration, of its runner."""
    said = read(file)
    if "app" not in said:
        raise DeclarationError(f'{file} names no app; write `app = "NAME"`')
    app = App(said["app"], tenant=said.get("tenant"))
    runner = file.resolve().parent / said["runner"] if "runner" in said else None
    paths = libraries(said, file)
    if not paths and runner is None:
        raise DeclarationError(f'{file} has nothing to serve; write `libraries = ["PATH"]`')
    for path in [*paths, *([runner] if runner else [])]:
        if not path.is_file():
            raise DeclarationError(f"{file}: there is no file {path}; build it first")
    native = Native(
        Service(app.name, RUNNER, tenant=app.tenant),
        None,
        limits(said.get("options", {}), file),
        data=declared(said.get("data", {}), file),
        libraries=tuple(paths),
        runner=runner,
    )
    app.declarations[RUNNER] = native
    return app


def limits(options: dict[str, Any], file: Path) -> Limits:
    retries = options.get("retries")
    if isinstance(retries, dict):
        try:
            options = options | {"retries": Retries(**retries)}
        except TypeError as error:
            raise DeclarationError(f"{file}: retries is {retries!r}; give max_retries, initial_delay, backoff and max_delay") from error
    found = Limits.declared(options, RUNNER)
    if found.base:
        raise DeclarationError(f"{file}: base is {found.base!r}, which is for functions in Python; leave it out")
    return found if "concurrency" in options else replace(found, concurrency=INSTANCES)


def declared(data: dict[str, Any], file: Path) -> dict[str, Data]:
    found = {}
    for name, one in data.items():
        if not isinstance(one, dict) or set(one) != {"url", "dtype", "shape"} or "=" in name:
            raise DeclarationError(f"{file}: data.{name} is {one!r}; give url, dtype and shape")
        shape = one["shape"]
        found[name] = Data(one["url"], dtype=one["dtype"], shape=tuple(shape) if isinstance(shape, list) else shape)
    return found
