"""`rekindle dev FILE`: deploys an app again whenever its file, or what lies beside it, changes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from rekindle import deploying, interrupts, native
from rekindle.errors import DeclarationError

# Seconds between two looks.
EVERY = 0.3
# Directories that hold no source of the app's.
ELSEWHERE = {"__pycache__", "node_modules", "site-packages"}

# Another interpreter, so that modules are loaded anew.
SCRIPT = "import sys; sys.path[:] = [path for path in sys.path if path]; from rekindle import deploying; sys.exit(deploying.main(sys.argv[1:]))"

State = dict[Path, tuple[int, int]]


def main(words: list[str]) -> NoReturn:
    """Until it is interrupted. What fails is said, and mended by the next change."""
    interrupts.catch()
    file = deploying.arguments(words).file
    while True:
        seen = state(file)
        deploy(words)
        while state(file) == seen:
            time.sleep(EVERY)


def deploy(words: list[str]) -> None:
    """Takes back what it did if this program is to end meanwhile."""
    program = subprocess.Popen([sys.executable, "-c", SCRIPT, *words], start_new_session=True)
    try:
        program.wait()
    except interrupts.Interrupted:
        program.terminate()
        program.wait()
        raise


def state(file: Path) -> State:
    """When each source was written, and its size."""
    found: State = {}
    for path in sources(file):
        try:
            status = path.stat()
        except OSError:
            continue
        found[path] = (status.st_mtime_ns, status.st_size)
    return found


def sources(file: Path) -> Iterator[Path]:
    """The file, and modules in its directory and below; of a manifest its libraries."""
    yield file
    if native.is_manifest(file):
        with contextlib.suppress(DeclarationError):
            yield from native.libraries(native.read(file), file)
        return
    for at, folders, files in os.walk(file.resolve().parent):
        folders[:] = [name for name in folders if is_sources(Path(at, name))]
        yield from (Path(at, name) for name in files if name.endswith(".py"))


def is_sources(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in ELSEWHERE and not (folder / "pyvenv.cfg").exists()
