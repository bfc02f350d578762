"""`rekindle convert MODEL -o DIR`: an app that serves a model, whose weights are declared data.

model.pt2 ────────────▶ exported ─┐
model.onnx ──▶ onnx ──▶           ├─▶ made ─▶ app.py, graph.py or a configuration, model.json, weights.safetensors
a directory ▶ pretrained ─────────┘
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from rekindle import interrupts
from rekindle.app import NAME
from rekindle.converting.made import Convert, ConvertError, Made
from rekindle.converting.source import source
from rekindle.data import Data
from rekindle.errors import DeclarationError, Error
from rekindle.inference.exported import MODEL
from rekindle.inference.placed import as_document
from rekindle.inference.tensors import TensorSpec

APP, WEIGHTS = "app.py", "weights.safetensors"


def main(words: list[str]) -> int:
    """Ends as every command of Rekindle's does."""
    given = arguments(words)
    interrupts.catch()
    try:
        # Standard output is the document's.
        with contextlib.redirect_stdout(sys.stderr):
            found = convert(given.model, given.output, given.name, given.data_url, given.device)
    except interrupts.Interrupted as end:
        return int(end.code or 1)
    except Error as error:
        return failed(str(error), given.json)
    except Exception as error:
        # Of a kind that nobody thought of: where it was helps.
        traceback.print_exc()
        return failed(f"{given.model} cannot be converted: {type(error).__name__}: {error}", given.json)
    print(json.dumps(found) if given.json else shown(found), flush=True)
    return 0


def failed(message: str, as_json: bool) -> int:
    sentence = "; ".join(line.strip() for line in message.splitlines())
    print(f"rekindle: {sentence}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": sentence}), flush=True)
    return 1


def arguments(words: list[str]) -> argparse.Namespace:
    """As `rekindle` passes them on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--name")
    parser.add_argument("--data-url")
    # Where torch computes: with "cpu" a model can be tried without an NVIDIA GPU.
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


def convert(model: Path, output: Path, name: str | None = None, url: str | None = None, device: str = "cuda") -> dict[str, Any]:
    """Nothing is written unless all of it can be."""
    reader = reader_of(model)
    name = name_of(model, name)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConvertError(f"{output} is there already; name a directory that is not, or an empty one")
    url = url or (output.resolve() / WEIGHTS).as_uri()
    check_url(url)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ConvertError(
            f"models are converted by {error.name}, which is not installed for {sys.executable}; install it, or give --python"
        ) from error
    made = reader(model, device)
    made.check()
    try:
        size = put(made, output, name, model.name, url, device)
    except OSError as error:
        raise ConvertError(f"{output} cannot be written: {error.strerror or error}") from error
    return described(made, output, name, url, size)


def reader_of(model: Path) -> Convert:
    if model.is_dir():
        from rekindle.converting.pretrained import from_directory

        return from_directory
    if not model.is_file():
        raise ConvertError(f"there is no {model}; name a .pt2 or .onnx file, or a directory with config.json and safetensors")
    match model.suffix:
        case ".pt2":
            from rekindle.converting.exported import from_file

            return from_file
        case ".onnx":
            from rekindle.converting.onnx import from_file

            return from_file
    raise ConvertError(f"{model} is neither a .pt2 file (torch.export.save), nor .onnx, nor a directory with config.json and safetensors")


def name_of(model: Path, name: str | None) -> str:
    """Of the app and the model; the file's unless another is given."""
    found = name or re.sub(r"[^A-Za-z0-9_-]+", "-", model.resolve().name.removesuffix(model.suffix) if model.is_file() else model.resolve().name)
    found = found if name else found.strip("-_")[:32]
    if not NAME.fullmatch(found):
        raise ConvertError(f"{found!r} is no name of an app; give --name with up to 32 letters, digits, - and _")
    return found


def check_url(url: str) -> None:
    try:
        Data(url, dtype="uint8", shape=1)
    except DeclarationError as error:
        raise ConvertError(str(error)) from error


def put(made: Made, output: Path, name: str, title: str, url: str, device: str) -> int:
    """The directory, once all of it is there. How many bytes the weights have."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as place:
        size = write(made, Path(place), name, title, url, device)
        with interrupts.held():
            output.mkdir(exist_ok=True)
            for file in Path(place).iterdir():
                file.rename(output / file.name)
    return size


def write(made: Made, place: Path, name: str, title: str, url: str, device: str) -> int:
    rows, size = made.write_weights(place / WEIGHTS)
    document = {**made.model, "weights": as_document(rows)}
    (place / MODEL).write_text(json.dumps(document) + "\n")
    for file, text in {**made.texts, APP: source(made, name, title, url, size, device)}.items():
        (place / file).write_text(text)
    for file, original in made.copies.items():
        shutil.copyfile(original, place / file)
    return size


def described(made: Made, output: Path, name: str, url: str, size: int) -> dict[str, Any]:
    return {
        "app": str(output / APP),
        "name": name,
        "protocol": "openai" if made.is_language else "v2",
        "weights": {"file": str(output / WEIGHTS), "url": url, "bytes": size},
        "inputs": rows_of(made.inputs),
        "outputs": rows_of(made.outputs),
        "batch": made.batch,
    }


def rows_of(specs: dict[str, TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": spec.datatype, "shape": spec.described()} for name, spec in specs.items()]


def shown(found: dict[str, Any]) -> str:
    weights = found["weights"]
    lines = [f"{found['app']} has the model {found['name']!r}, with {weights['bytes'] / 1e6:.1f} MB of weights at {weights['url']}"]
    for kind in ("inputs", "outputs"):
        lines += [f"  {kind[:-1]} {row['name']}: {row['datatype']} {row['shape']}" for row in found[kind]]
    if weights["url"] == Path(weights["file"]).resolve().as_uri():
        lines.append(f"rekindled may read files below its --data-files alone; start it with that of {Path(weights['file']).parent} or above")
    else:
        lines.append(f"copy {weights['file']} to {weights['url']}")
    lines.append(f"then: rekindle deploy {found['app']}")
    return "\n".join(lines)
