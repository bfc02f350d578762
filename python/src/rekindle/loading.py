"""An app's file, loaded as a module by its own name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from rekindle.app import App
from rekindle.errors import DeclarationError


def load(file: Path) -> App:
    """The one app of the file. What the file raises is the caller's to show."""
    return only_app(load_module(file), file)


def load_module(file: Path) -> ModuleType:
    if not file.is_file():
        raise DeclarationError(f"there is no file {file}; name the Python file that has the app")
    name = file.stem
    if file.suffix != ".py" or "." in name:
        raise DeclarationError(f"{file} is no Python module; its name is to end in .py, and to have no other dot")
    if name in sys.modules or name in sys.stdlib_module_names:
        raise DeclarationError(f"{file} has the name of the module {name!r}, which is another one; rename it")
    file = file.resolve()
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{file} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def only_app(module: ModuleType, file: Path) -> App:
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if not apps:
        raise DeclarationError(f"{file} has no app; write `app = rekindle.App(NAME)` and decorate functions by it")
    if len(apps) > 1:
        names = " and ".join(repr(app.name) for app in apps.values())
        raise DeclarationError(f"{file} has {len(apps)} apps, {names}; keep one in a file")
    (app,) = apps.values()
    if not app.declarations:
        raise DeclarationError(
            f"the app {app.name!r} of {file} has nothing to serve; decorate a class with @app.cls() or a function with @app.function()"
        )
    return app
