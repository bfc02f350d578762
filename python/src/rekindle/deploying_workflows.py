"""Workflows of an app, served by the node."""

from __future__ import annotations

import json
import tempfile
from typing import Any

from rekindle import command
from rekindle.address import NOBODY
from rekindle.app import App
from rekindle.deployed_workflow import DeployedWorkflow
from rekindle.errors import DeclarationError


def deployed(app: App) -> dict[str, Any]:
    """Those that were deployed of this app."""
    rows = command.ask("services", "--tenant", app.tenant or NOBODY)["workflows"]
    return {row["name"]: row for row in rows if row["app"] == app.name}


def check(app: App, graphs: dict[str, Any]) -> None:
    """That the file has what its workflows call of the app."""
    own = {declaration.service.full_name for declaration in app.declarations.values()}
    for name, graph in graphs.items():
        for step in graph["steps"]:
            service = step["service"]
            if service.rpartition("-")[0] == app.name and step["tenant"] == app.tenant and service not in own:
                raise DeclarationError(
                    f"the step {step['name']!r} of the workflow {name!r} calls {service}, which the file does not have; declare it there"
                )


def serve(workflow: DeployedWorkflow, graph: dict[str, Any]) -> dict[str, Any]:
    """Calls that come from now on go through it; those under way go on through the one that there was."""
    service, port = workflow.service, workflow.options.port
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(graph, file)
        file.flush()
        options = ["--tenant", service.tenant or NOBODY, *(["--port", port] if port else [])]
        row = command.ask("serve-workflow", file.name, "--name", service.full_name, *options)
    return {"name": service.name, "service": service.full_name, "address": row["address"], "port": row["port"], "steps": len(graph["steps"])}
