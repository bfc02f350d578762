"""`rekindle deploy FILE`: an image of each function and class of an app, or of the runner of its manifest, served."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from rekindle import command, deploying_workflows, frameworks, interrupts, making, native
from rekindle.address import NOBODY, TENANT_VARIABLE, TOKEN_VARIABLE
from rekindle.app import App
from rekindle.client import READY
from rekindle.declaration import Declaration
from rekindle.errors import CommandError, DeclarationError, Error
from rekindle.loading import load
from rekindle.serving.main import PORT


class LoadError(Error):
    """User code raised while the file was loaded."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


def main(words: list[str]) -> int:
    """Ends as every command of Rekindle's does."""
    given = arguments(words)
    # They are the caller's, and would lie in the images.
    for variable in (TOKEN_VARIABLE, TENANT_VARIABLE):
        os.environ.pop(variable, None)
    interrupts.catch()
    try:
        # Standard output is the document's.
        with contextlib.redirect_stdout(sys.stderr):
            deployed = deploy(given.file, given.tenant, has_base=not given.no_base)
    except interrupts.Interrupted as end:
        # What was under way is taken back.
        return int(end.code or 1)
    except Error as error:
        print(getattr(error, "traceback", ""), end="", file=sys.stderr)
        sentence = "; ".join(line.strip() for line in str(error).splitlines())
        print(f"rekindle: {sentence}", file=sys.stderr)
        if given.json:
            print(json.dumps({"error": sentence}), flush=True)
        return 1
    print(json.dumps(deployed) if given.json else shown(deployed), flush=True)
    return 0


def arguments(words: list[str]) -> argparse.Namespace:
    """As `rekindle` passes them on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--tenant")
    parser.add_argument("--no-base", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


def deploy(file: Path, tenant: str | None = None, *, has_base: bool = True) -> dict[str, Any]:
    """The app, its services, and those that it does not have any more. If one cannot get ready, nothing has changed. Without
    `has_base` they start from no framework image but one that is declared."""
    app = load_user(file)
    app.tenant = tenant or app.tenant
    check_tenant(app)
    graphs = {name: workflow.graph() for name, workflow in app.workflows.items()}
    deploying_workflows.check(app, graphs)
    made: dict[str, making.Made] = {}
    rows = []
    try:
        for name, declaration in app.declarations.items():
            base = (making.base_for(declaration) or frameworks.base_for(app, declaration, file)) if has_base else declaration.limits.base
            made[name] = making.make(declaration, file.resolve(), base or None)
        before = services(app)
        for name, declaration in app.declarations.items():
            with interrupts.held():
                row = serve(app, declaration, made[name], before.get(declaration.service.full_name))
                # It is the service's from now on.
                del made[name]
            functions = {"functions": list(declaration.functions)} if isinstance(declaration, native.Native) else {}
            rows.append({"name": name, "call": call_of(app, declaration), **row, **functions})
    finally:
        with interrupts.held():
            for image in itertools.chain(*(one.images for one in made.values())):
                with contextlib.suppress(CommandError):
                    command.ask("rmi", image)
    former = deploying_workflows.deployed(app)
    flows = []
    for name, workflow in app.workflows.items():
        with interrupts.held():
            row = deploying_workflows.serve(workflow, graphs[name])
        flows.append(row | {"call": call_by_name(app.name, app.tenant, name)})
    served = {row["service"] for row in (*rows, *flows)}
    # Those who call go before those who are called.
    gone = [name for name in (*former, *before) if name not in served]
    with interrupts.held():
        for name in gone:
            command.ask("unserve", name, "--tenant", owner(app))
        remove_old(app, {image for row in rows for image in (row["image"], *row["variants"])}, before)
    return {"app": app.name, "tenant": app.tenant, "services": rows, "workflows": flows, "removed": gone}


def load_user(file: Path) -> App:
    try:
        return native.load(file) if native.is_manifest(file) else load(file)
    except (Error, interrupts.Interrupted):
        raise
    except (Exception, SystemExit) as error:
        said = traceback.format_exception_only(error)[-1].strip()
        raise LoadError(f"{file} cannot be loaded: {said}", traceback_of(error)) from error


def traceback_of(error: BaseException) -> str:
    from rekindle.raised import text_of

    return text_of(error)


def services(app: App) -> dict[str, Any]:
    """Those that were deployed of this app: they have its name and tenant, and an image of theirs."""
    rows = command.ask("services", "--tenant", owner(app))["services"]
    return {row["name"]: row for row in rows if is_of(app, row["name"]) and is_image_of(row)}


def is_image_of(row: dict[str, Any]) -> bool:
    """Whether the service's image was made for it. Earlier versions' images do not name the tenant."""
    image, name = str(row["source"]["image"]), row["name"]
    return image.startswith((f"{name}@", f"{row['tenant']}@{name}@"))


def owner(app: App) -> str:
    """Whose its services are, as commands are told."""
    return app.tenant or NOBODY


def is_of(app: App, service: str) -> bool:
    return service.rpartition("-")[0] == app.name


def check_tenant(app: App) -> None:
    """Before anything is made: what `serve` would refuse."""
    if app.tenant and all(row["name"] != app.tenant for row in command.ask("tenant", "ls")["tenants"]):
        raise DeclarationError(f"there is no tenant named {app.tenant!r}; make it by `rekindle tenant create {app.tenant}`")


def serve(app: App, declaration: Declaration, made: making.Made, before: dict[str, Any] | None) -> dict[str, Any]:
    """Requests of a service that is there go over to the new image; none fails."""
    name, limits = declaration.service.full_name, declaration.limits
    port = [] if before and limits.is_any_port else ["--port", limits.port]
    image, *further = made.images
    variants = [word for other in further for word in ("--variant", other)]
    message = ("--message", made.message)
    options = ("--tenant", owner(app), *message, *port, *variants, *limits.serve_options(), *declaration.data_options(), *declaration.slot_options())
    row = command.ask("serve", image, "--name", name, "--to", PORT, "--ready", READY, *options)
    return {"service": name, "image": image, "variants": further, "address": row["address"], "port": row["port"]}


def remove_old(app: App, current: set[str], before: dict[str, Any]) -> None:
    """Images of earlier deployments, but for those that some sandbox still runs from, or a service has. Names are in the order
    of time. `before` are the services as they were: an earlier version's images do not name the tenant."""
    served = [image for row in command.ask("services")["services"] for image in images_of(row)]
    used = {row["image"] for row in command.ask("ps")["sandboxes"]}.union(current, served)
    former = {image for row in before.values() for image in images_of(row)}
    for image in (row["name"] for row in command.ask("images")["images"]):
        word, at, _ = image.rpartition("@")
        tenant, _, service = word.rpartition("@")
        is_later = any(image > other for other in current if other.startswith(f"{word}@"))
        is_old = at and tenant == (app.tenant or "") and is_of(app, service) and not is_later
        if (is_old or image in former) and image not in used:
            with contextlib.suppress(CommandError):
                command.ask("rmi", image)


def images_of(row: dict[str, Any]) -> list[str]:
    """Those that a service has."""
    source, canary = row["source"] or {"image": None}, row["canary"] or {"image": None}
    variants = [variant["image"] for variant in source.get("variants", [])]
    return [image for image in (source["image"], canary["image"], *variants) if image]


def call_of(app: App, declaration: Declaration) -> str:
    """How another program calls it."""
    name = declaration.service.name
    if isinstance(declaration, native.Native):
        return call_by_name(app.name, app.tenant, declaration.functions[0])
    if any(mark.is_asgi for _, mark in declaration.marks()):
        return "HTTP"
    if not declaration.is_class:
        return call_by_name(app.name, app.tenant, name)
    method = next(found for found, mark in declaration.marks() if mark.is_method)
    return f"rekindle.Cls.from_name({named(app.name, app.tenant, name)})().{method}.remote(...)"


def call_by_name(app: str, tenant: str | None, function: str) -> str:
    return f"rekindle.Function.from_name({named(app, tenant, function)}).remote(...)"


def named(app: str, tenant: str | None, name: str) -> str:
    return f'"{app}", "{name}"' + (f', tenant="{tenant}"' if tenant else "")


def url_of(row: dict[str, Any]) -> str:
    address = row["address"] or "0.0.0.0"
    return f"http://{f'[{address}]' if ':' in address else address}:{row['port']}"


def shown(deployed: dict[str, Any]) -> str:
    lines = []
    for row in deployed["services"]:
        lines.append(f"{row['service']} is served at {url_of(row)} from image {row['image']}")
        if "functions" in row:
            lines += [f"  {call_by_name(deployed['app'], deployed['tenant'], function)}" for function in row["functions"]]
        elif row["call"] != "HTTP":
            lines.append(f"  {row['call']}")
    for row in deployed["workflows"]:
        lines += [f"{row['service']} is a workflow of {row['steps']} steps, at {url_of(row)}", f"  {row['call']}"]
    lines += [f"{name} is no part of the app any more, and was removed" for name in deployed["removed"]]
    return "\n".join(lines)
