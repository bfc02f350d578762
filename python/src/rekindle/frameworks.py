"""Framework images that deployments make by themselves: of the frameworks that an app imports, once for all apps that import these."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from rekindle import command
from rekindle.app import App
from rekindle.declaration import Declaration
from rekindle.errors import CommandError
from rekindle.native import Native

# Modules that take long to import, and use a GPU.
KNOWN = ("torch", "torchvision", "torchaudio", "transformers", "diffusers", "timm", "jax", "cupy", "tensorflow")
# The names of the images, which users give to none of theirs.
AUTOMATIC = re.compile(r"framework( \w+)+ [0-9a-f]{16}")


def is_automatic(image: str) -> bool:
    return AUTOMATIC.fullmatch(image) is not None


def base_for(app: App, declaration: Declaration, file: Path) -> str | None:
    """The image of what the app imports, which is made if there is none yet; none if it imports no framework, or none can be made."""
    if not allows(declaration):
        return None
    found = imported(file)
    if not found:
        return None
    image = name_of(app, declaration, found)
    is_there = any(row["name"] == image and row["problem"] is None for row in command.ask("images")["images"])
    if not is_there and not make(image, list(found), declaration):
        return None
    if may_share(declaration, command.ask("inspect", image)):
        return image
    say(
        f"warning: the app starts without the framework image {image!r}: importing these has used a GPU, and functions that share contexts do not begin so"
    )
    return None


def allows(declaration: Declaration) -> bool:
    """Whether it can start from such an image: its program is Python's, and has one GPU by a worker."""
    limits = declaration.limits
    return limits.base is None and not limits.mode and "," not in (limits.first_gpu or "") and not isinstance(declaration, Native)


def may_share(declaration: Declaration, shown: dict[str, Any]) -> bool:
    """Whether apps from an image share GPU contexts, if this one is to: its program has used no GPU."""
    return not declaration.limits.share or not shown["gpus"]


def imported(file: Path) -> dict[str, ModuleSpec]:
    """The frameworks that the app's sources import, wherever they do, in the order of KNOWN."""
    names = {name for source in sources(file) for name in imports_of(source)}
    specs = {name: importlib.util.find_spec(name) for name in KNOWN if name in names}
    return {name: spec for name, spec in specs.items() if spec and spec.origin}


def sources(file: Path) -> Iterator[Path]:
    """The file, and what it has loaded of the modules beside it and below."""
    place = file.resolve().parent
    yield file
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/")
        is_own = name.partition(".")[0] not in {"rekindle", *sys.stdlib_module_names} and "site-packages" not in path.parts
        if is_own and path.suffix == ".py" and path.is_relative_to(place):
            yield path


def imports_of(source: Path) -> Iterator[str]:
    """The first parts of the names of the modules that it imports."""
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def name_of(app: App, declaration: Declaration, found: dict[str, ModuleSpec]) -> str:
    """It says all by which one image is not another: whose it is, the interpreter, the GPU, and the frameworks as they are installed."""
    gpu = declaration.limits.first_gpu or ""
    kind = "nvidia" if gpu.partition(":")[0] == "nvidia" else gpu
    parts = [app.tenant or "", sys.executable, sys.version, kind, *(["shared"] if declaration.limits.share else [])]
    for spec in found.values():
        assert spec.origin is not None
        parts += [spec.origin, str(Path(spec.origin).stat().st_mtime_ns)]
    mark = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
    return " ".join(["framework", *found, mark])


def make(image: str, names: list[str], declaration: Declaration) -> bool:
    """Whether it is there now. What fails is no failure of the deployment."""
    limits = declaration.limits
    words = ["--gpu", limits.first_gpu] if limits.first_gpu else []
    words += [word for name in names for word in ("--import", name)]
    words += ["--no-gpu"] if limits.share else []
    say(f"making the framework image {image!r}, from which this and later deployments start (--no-base: without)")
    began = time.monotonic()
    try:
        command.ask("image", "framework", image, "--python", sys.executable, "--limit", limits.startup_timeout, *words, shows_progress=True)
    except CommandError as error:
        say(f"warning: the framework image {image!r} was not made, and the app starts without one: {error}")
        return False
    say(f"made the framework image {image!r} in {time.monotonic() - began:.1f} s")
    return True


def say(sentence: str) -> None:
    print(f"rekindle: {sentence}", file=sys.stderr, flush=True)
