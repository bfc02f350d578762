"""The Open Inference Protocol over HTTP, version 2 of KServe's, with its extension of binary tensors."""

from __future__ import annotations

import asyncio
import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy

from rekindle.errors import DeclarationError
from rekindle.inference import messages
from rekindle.inference.http import Gone, Refused, Request, Response, answer, as_refused, document_of, live, read, written
from rekindle.inference.messages import Array
from rekindle.inference.tensors import DATATYPES, TensorSpec
from rekindle.marks import mark_of
from rekindle.serving.asgi import TARGET, Message, Receive, Send
from rekindle.serving.target import Target

HEADER_LENGTH = "inference-header-content-length"
VERSION = "1"
MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer)?")
# Shapes that NumPy has.
MOST_DIMENSIONS, LARGEST = 32, 1 << 62


@dataclass(frozen=True)
class Asked:
    """What a request wants of the outputs: their names, and whether each is to come as bytes."""

    identity: str | None
    outputs: dict[str, bool]


class Inference:
    def __init__(self, method: str, name: str, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], *, is_batched: bool) -> None:
        self.method, self.name, self.inputs, self.outputs, self.is_batched = method, name, dict(inputs), dict(outputs), is_batched

    @classmethod
    def of(cls, method: Callable[..., Any], name: str | None, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]) -> Inference:
        mark = mark_of(method)
        if mark is None or not mark.is_method:
            raise DeclarationError(f"{method!r} cannot be inferred by; give a method with @rekindle.method() or @rekindle.batched()")
        for kind, specs in (("inputs", inputs), ("outputs", outputs)):
            if not specs or not all(isinstance(one, str) and isinstance(spec, TensorSpec) for one, spec in specs.items()):
                raise DeclarationError(f"the {kind} of {method.__qualname__} are {specs!r}; give rekindle.TensorSpec by name")
        try:
            inspect.signature(method).bind(*inputs)
        except TypeError as error:
            raise DeclarationError(f"{method.__qualname__} does not take the inputs {', '.join(inputs)}: {error}") from None
        if mark.batched and not all(spec.shape and spec.shape[0] is None for spec in (*inputs.values(), *outputs.values())):
            raise DeclarationError(f"{method.__qualname__} is batched; the first size of all its inputs and outputs is to be None")
        owner = getattr(method, "__self__", None)
        name = name or (type(owner).__name__ if owner is not None else method.__name__)
        return cls(method.__name__, name, inputs, outputs, is_batched=mark.batched is not None)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
        elif scope["type"] == "http":
            try:
                response = await self.respond(await read(scope, receive), scope[TARGET])
            except Gone:
                return
            except Exception as error:
                refused = as_refused(error)
                if refused.status == 500:
                    traceback.print_exception(error)
                response = Response.of({"error": refused.message}, refused.status)
            await answer(send, response)
        else:
            await send({"type": "websocket.close"})

    async def respond(self, request: Request, target: Target) -> Response:
        path = request.path.rstrip("/")
        found = MODEL.fullmatch(path)
        wanted = "POST" if found and found[3] == "/infer" else "GET"
        if request.method != wanted and not (request.method == "HEAD" and wanted == "GET"):
            raise Refused(405, f"{request.method} {path} is nothing that is answered; use {wanted}")
        if found:
            return await self.of_model(found, request, target)
        match path:
            case "/v2":
                return Response.of({"name": "rekindle", "version": version(), "extensions": ["binary_tensor_data"]})
            case "/v2/health/live":
                return Response.of({"live": True})
            case "/v2/health/ready":
                return Response.of({"ready": True})
        raise Refused(404, f"there is no {path}; the model is at /v2/models/{self.name}")

    async def of_model(self, found: re.Match[str], request: Request, target: Target) -> Response:
        name, version, what = found.groups()
        if name != self.name:
            raise Refused(404, f"there is no model {name!r}; there is {self.name!r}")
        if version not in (None, VERSION):
            raise Refused(404, f"there is no version {version!r} of {name!r}; there is {VERSION!r}")
        if what == "/ready":
            return Response.of({"name": name, "ready": True})
        if what is None:
            return Response.of({"name": name, "versions": [VERSION], "platform": "rekindle", **self.described()})
        return await self.infer(request, target)

    def described(self) -> dict[str, Any]:
        return {"inputs": described(self.inputs), "outputs": described(self.outputs)}

    async def infer(self, request: Request, target: Target) -> Response:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "the request is compressed, which is not understood; send it as it is")
        document, behind = parts(request)
        arrays = self.arrays(document, behind)
        asked = self.asked(document)
        values = await (self.elements(arrays, target) if self.is_batched else target.call(self.method, arrays, {}))
        return self.response(asked, self.results(values))

    def arrays(self, document: dict[str, Any], behind: memoryview) -> list[Array]:
        """The inputs, in the order in which they were declared."""
        found: dict[str, Array] = {}
        for row in rows_of(document, "inputs"):
            name = row.get("name")
            spec = self.inputs.get(name) if isinstance(name, str) else None
            if not isinstance(name, str) or spec is None:
                raise Refused(400, f"there is no input {name!r}; there are {', '.join(self.inputs)}")
            if name in found:
                raise Refused(400, f"the input {name!r} is there twice")
            shape, size = shape_of(name, spec, row), parameters_of(row).get("binary_data_size")
            if size is None:
                found[name] = messages.from_json(name, spec, shape, row.get("data"))
                continue
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= behind.nbytes:
                raise Refused(400, f"binary_data_size of the input {name!r} is {size!r}, and {behind.nbytes} bytes are left of the request")
            found[name], behind = messages.from_bytes(name, spec, shape, behind[:size]), behind[size:]
        missing = [name for name in self.inputs if name not in found]
        if missing:
            raise Refused(400, f"the input {missing[0]!r} is missing")
        if behind.nbytes:
            raise Refused(400, f"{behind.nbytes} bytes are left of the request behind its inputs; each has binary_data_size of them")
        return [found[name] for name in self.inputs]

    def asked(self, document: dict[str, Any]) -> Asked:
        identity = document.get("id")
        if not isinstance(identity, str | None):
            raise Refused(400, f"the id is {identity!r}; give a text")
        usual = bool(parameters_of(document).get("binary_data_output", False))
        if "outputs" not in document:
            return Asked(identity, dict.fromkeys(self.outputs, usual))
        outputs = {}
        for row in rows_of(document, "outputs"):
            if row.get("name") not in self.outputs:
                raise Refused(400, f"there is no output {row.get('name')!r}; there are {', '.join(self.outputs)}")
            outputs[row["name"]] = bool(parameters_of(row).get("binary_data", usual))
        return Asked(identity, outputs or dict.fromkeys(self.outputs, usual))

    async def elements(self, arrays: list[Array], target: Target) -> dict[str, Array]:
        """Each element of the batch is a call of its own, and is collected with those of other requests."""
        sizes = {len(array) for array in arrays}
        if len(sizes) != 1 or sizes == {0}:
            raise Refused(400, f"the inputs have batches of {', '.join(map(str, sorted(sizes)))}; give as many of each, one or more")
        calls = [asyncio.ensure_future(target.call(self.method, list(row), {})) for row in zip(*arrays, strict=True)]
        try:
            rows = [self.results(value, is_element=True) for value in await asyncio.gather(*calls)]
        finally:
            for call in calls:
                call.cancel()
        return {name: numpy.stack(column) for name, column in zip(self.outputs, zip(*rows, strict=True), strict=True)}

    def results(self, value: Any, *, is_element: bool = False) -> list[Array]:
        """What the method returned, in the order of the outputs."""
        if isinstance(value, Mapping):
            if missing := [name for name in self.outputs if name not in value]:
                raise TypeError(f"{self.method} returned {', '.join(map(str, value))}, and {missing[0]} is missing")
            value = [value[name] for name in self.outputs]
        elif len(self.outputs) == 1 and not (isinstance(value, tuple) and len(value) == 1):
            value = [value]
        if not isinstance(value, list | tuple) or len(value) != len(self.outputs):
            raise TypeError(f"{self.method} returned {type(value).__name__} for the outputs {', '.join(self.outputs)}; return one value for each")
        specs = [TensorSpec(spec.dtype, spec.shape[1:]) if is_element else spec for spec in self.outputs.values()]
        return [messages.output_array(name, spec, one) for name, spec, one in zip(self.outputs, specs, value, strict=True)]

    def response(self, asked: Asked, arrays: list[Array]) -> Response:
        found = dict(zip(self.outputs, arrays, strict=True))
        rows, behind = [], []
        for name, is_binary in asked.outputs.items():
            spec, array = self.outputs[name], found[name]
            row: dict[str, Any] = {"name": name, "datatype": spec.datatype, "shape": list(array.shape)}
            if is_binary:
                behind.append(messages.to_bytes(spec, array))
                row["parameters"] = {"binary_data_size": len(behind[-1])}
            else:
                row["data"] = messages.to_json(name, spec, array)
            rows.append(row)
        document = {"model_name": self.name, "model_version": VERSION, "outputs": rows}
        head = written(document | ({"id": asked.identity} if asked.identity is not None else {}))
        if not any(asked.outputs.values()):
            return Response(head)
        return Response(b"".join([head, *behind]), headers={"content-type": "application/octet-stream", HEADER_LENGTH: str(len(head))})


def version() -> str:
    """The package's, if it was installed as one."""
    try:
        return metadata.version("rekindle")
    except metadata.PackageNotFoundError:
        return "unknown"


def described(specs: Mapping[str, TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": spec.datatype, "shape": spec.described()} for name, spec in specs.items()]


def parts(request: Request) -> tuple[dict[str, Any], memoryview]:
    """The JSON, and the bytes behind it."""
    said = request.headers.get(HEADER_LENGTH)
    if said is None:
        return document_of(request.body), memoryview(b"")
    if not (said.isascii() and said.isdigit()) or int(said) > len(request.body):
        raise Refused(400, f"Inference-Header-Content-Length is {said!r}, and the request has {len(request.body)} bytes")
    return document_of(request.body[: int(said)]), memoryview(request.body)[int(said) :]


def rows_of(document: dict[str, Any], what: str) -> list[dict[str, Any]]:
    rows = document.get(what)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refused(400, f"the {what} of the request are no list of objects")
    return rows


def parameters_of(row: dict[str, Any]) -> dict[str, Any]:
    found = row.get("parameters", {})
    if not isinstance(found, dict):
        raise Refused(400, "the parameters of the request are no object")
    return found


def shape_of(name: str, spec: TensorSpec, row: dict[str, Any]) -> list[int]:
    datatype, shape = row.get("datatype"), row.get("shape")
    if datatype != spec.datatype:
        known = "" if datatype in DATATYPES.values() else ", which is none of the protocol's"
        raise Refused(400, f"the input {name!r} is {datatype!r}{known}; it is to be {spec.datatype}")
    is_shape = isinstance(shape, list) and all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < LARGEST for size in shape)
    if not isinstance(shape, list) or not is_shape or len(shape) > MOST_DIMENSIONS or not spec.fits(shape):
        raise Refused(400, f"the input {name!r} has the shape {shape!r}; it is to be {spec.described()}")
    return shape
