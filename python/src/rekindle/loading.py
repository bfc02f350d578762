"""An app's file, loaded as a module by its own name."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

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
    loader = Loader(name, str(file))
    module = importlib.util.module_from_spec(ModuleSpec(name, loader, origin=str(file)))
    module.__file__ = str(file)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


class Loader(SourceFileLoader):
    """Of what the file has now: code that was compiled before may be of another version, written in the same second."""

    def get_code(self, _name: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def only_app(module: ModuleType, file: Path) -> App:
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if not apps:
        raise DeclarationError(f"{file} has no app; write `app = rekindle.App(NAME)` and decorate functions by it")
    if len(apps) > 1:
        names = " and ".join(repr(app.name) for app in apps.values())
        raise DeclarationError(f"{file} has {len(apps)} apps, {names}; keep one in a file")
    (app,) = apps.values()
    if not app.declarations and not app.workflows:
        raise DeclarationError(
            f"the app {app.name!r} of {file} has nothing to serve; decorate a class with @app.cls() or a function with @app.function()"
        )
    return app
