"""The `rekindle` command, asked for documents."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from rekindle.errors import CommandError

# The command that is used, else the one in PATH.
VARIABLE = "REKINDLE_COMMAND"


def path() -> str:
    found = os.environ.get(VARIABLE) or shutil.which("rekindle")
    if not found:
        raise CommandError(f"the command `rekindle` was not found; install it (`make install`), or name it in {VARIABLE}", 127)
    return found


def ask(*words: object, shows_progress: bool = False) -> dict[str, Any]:
    """What the command answers. One that shows its progress writes to this program's standard error."""
    command = [path(), "--json", *map(str, words)]
    try:
        # A Ctrl-C is this program's, which says what becomes of the command.
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if shows_progress else subprocess.PIPE,
            text=True,
            check=False,
            start_new_session=True,
        )
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be started: {error.strerror}", 126) from error
    try:
        answer: dict[str, Any] = json.loads(done.stdout or "{}")
    except ValueError as error:
        raise CommandError(f"`{' '.join(command)}` answered {done.stdout[:80]!r}, which is no document; is it of another version?", 1) from error
    # Some end as a program did, and have worked.
    if done.returncode and ("error" in answer or not answer):
        said = (done.stderr or "").strip().splitlines() or [f"`{' '.join(command)}` ended with {done.returncode}"]
        raise CommandError(answer.get("error", said[-1].removeprefix("rekindle: ")), done.returncode)
    return answer
