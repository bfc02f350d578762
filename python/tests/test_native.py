"""Functions without Python: libraries in C and in Rust, deployed by a manifest and called as functions in Python are."""

import ctypes
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import rekindle as package
from conftest import ROOT, Deployer, begun
from harness import BINARIES, CommandError
from rekindle.codec import decode, encode

INCLUDE = ROOT / "crates/runner/include"
RUST = BINARIES / "libexample_functions.so"
NATIVE = Path(__file__).parent / "native"


def build(source, to, *options):
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-fPIC", "-I", INCLUDE, *options, "-o", to, source], check=True)
    return to


def library(source, directory):
    return build(source, directory / f"lib{source.stem}.so", "-shared")


class Native(Deployer):
    """Writes manifests, and deploys them."""

    def manifest(self, name, libraries, extra="", **options):
        options = {"gpu": "emulated", "scaledown_window": 600} | options
        rows = "\n".join(f"{key} = {value!r}" for key, value in options.items())
        file = self.directory / f"{name}.toml"
        file.write_text(f"app = {name!r}\nlibraries = {[str(path) for path in libraries]}\n{extra}\n[options]\n{rows}\n")
        return file

    def native(self, name, libraries, extra="", **options):
        return self(self.manifest(name, libraries, extra, **options))

    def library(self, name):
        return library(NATIVE / f"{name}.c", self.directory)

    def instances(self, name):
        """What the runner of an app says of its instances."""
        with urllib.request.urlopen(f"{self.url(name)}/-/about") as answer:
            return decode(answer.read())["instances"]

    def url(self, name):
        return f"http://127.0.0.1:{self.service(f'{name}-runner')['port']}"

    def pid(self, name):
        return next(row["pid"] for row in self.rekindle.sandboxes() if row["name"].startswith(f"{name}-runner-") and row["pid"])


@pytest.fixture
def natives():
    with begun() as instance:
        yield Native(instance)


@pytest.fixture(scope="module")
def calls():
    """The examples and the tests' own library, deployed once for tests that change nothing."""
    with begun() as instance:
        deployer = Native(instance)
        saxpy = library(ROOT / "examples/native/c/saxpy.c", deployer.directory)
        deployer.native("calls", [saxpy, deployer.library("various"), RUST], concurrency=8, timeout=60)
        yield deployer


def function(name, app="calls", **options):
    return package.Function.from_name(app, name, **options)


def test_functions_in_c_and_in_rust_are_called_as_those_in_python(calls):
    x, y = np.arange(1000, dtype="float32"), np.ones(1000, "float32")
    np.testing.assert_array_equal(function("saxpy").remote(2.0, x, y), 2 * x + 1)
    np.testing.assert_array_equal(function("scale").remote(x.reshape(10, 100), 0.5), x.reshape(10, 100) / 2)
    np.testing.assert_array_equal(package.Cls.from_name("calls", "runner")().saxpy.remote(1.0, x, y), x + 1)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))
