"""Which frameworks an app imports, and what tells the images apart that are made of them."""

import sys
import types
from pathlib import Path

import pytest
import rekindle as package
import rekindle.converting  # noqa: F401 (it imports torch when it is used)
from conftest import ROOT
from rekindle import frameworks

SOURCES = {
    "import torch": ["torch"],
    "import os, jax.numpy as jnp": ["jax"],
    "def f():\n    from torch.nn import functional\n    import cupy": ["torch", "cupy"],
    "import torches": [],
    "from . import torch": [],
    "'import torch'": [],
    "if TYPE_CHECKING:\n    import tensorflow": ["tensorflow"],
    "import (": [],
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    for name in ("torch", "jax", "cupy", "tensorflow"):
        (tmp_path / "installed" / name).mkdir(parents=True)
        (tmp_path / "installed" / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "installed")
    for name in frameworks.KNOWN:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("source", SOURCES)
def test_imports_are_found_wherever_they_stand(installed, tmp_path, source):
    file = tmp_path / "app.py"
    file.write_text(source)
    assert list(frameworks.imported(file)) == SOURCES[source]


def test_modules_beside_the_file_count_and_what_is_not_installed_does_not(installed, tmp_path, monkeypatch):
    place = tmp_path / "app"
    place.mkdir()
    (place / "beside_the_app.py").write_text("def f():\n    import jax\n")
    file = place / "app.py"
    file.write_text("import beside_the_app, diffusers\n")
    assert list(frameworks.imported(file)) == []
    beside = types.ModuleType("beside_the_app")
    beside.__file__ = str(place / "beside_the_app.py")
    monkeypatch.setitem(sys.modules, beside.__name__, beside)
    assert list(frameworks.imported(file)) == ["jax"]


def test_what_this_package_imports_is_no_part_of_an_app(installed):
    # Its modules lie below that of the file.
    assert Path(package.__file__).is_relative_to(ROOT)
    assert frameworks.imported(ROOT / "app.py") == {}


def declared(tenant=None, **options):
    app = package.App("app", tenant=tenant)
    app.function(**options)(one)
    return app, app.declarations["one"]


def one():
    pass


def test_an_image_is_of_one_tenant_gpu_and_installation(installed, tmp_path):
    file = tmp_path / "app.py"
    file.write_text("import torch, jax")
    found = frameworks.imported(file)
    names = [
        frameworks.name_of(*declared(**options), found)
        for options in ({}, {"tenant": "blue"}, {"gpu": "emulated"}, {"gpu": "nvidia"}, {"share": False})
    ]
    assert len(set(names)) == 5 and all(name.startswith("framework torch jax ") and frameworks.is_automatic(name) for name in names)
    # Cards of one machine are alike.
    assert frameworks.name_of(*declared(gpu="nvidia:1"), found) == names[3]
    Path(found["jax"].origin).write_text("VERSION = 2")
    assert frameworks.name_of(*declared(), found) != names[0]
    assert not frameworks.is_automatic("framework torch")


def test_functions_that_fit_no_framework_image_have_none():
    allows = lambda **options: frameworks.allows(declared(**options)[1])
    assert allows(share=False) and allows(share=False, gpu="nvidia:1") and allows(share="team") and allows()
    for options in ({"base": ""}, {"base": "own"}, {"gpu": "nvidia:0,1"}, {"mode": "driver"}):
        assert not allows(**options), options


def test_an_app_is_told_why_it_starts_without_its_image(installed, tmp_path, monkeypatch, capsys):
    file = tmp_path / "app.py"
    file.write_text("import torch")
    app, declaration = declared()
    image = frameworks.name_of(app, declaration, frameworks.imported(file))
    answers = {"images": {"images": [{"name": image, "problem": None}]}, "inspect": {"gpus": []}}
    monkeypatch.setattr(frameworks.command, "ask", lambda what, *_: answers[what])
    assert frameworks.base_for(app, declaration, file) == image and not capsys.readouterr().err
    answers["inspect"] = {"gpus": [{"kind": "nvidia"}]}
    assert frameworks.base_for(app, declaration, file) is None
    assert f"starts without the framework image '{image}'" in capsys.readouterr().err


def test_apps_that_share_contexts_start_from_images_that_have_used_no_gpu():
    of = lambda **options: declared(**options)[1]
    used, unused = {"gpus": [{"kind": "nvidia"}]}, {"gpus": []}
    assert not frameworks.may_share(of(), used) and not frameworks.may_share(of(share="team"), used)
    assert all(frameworks.may_share(of(share=False), shown) for shown in (used, unused)) and frameworks.may_share(of(), unused)
