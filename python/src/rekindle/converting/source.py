"""The text of a converted model's app."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping

from rekindle.converting.made import Made
from rekindle.inference.tensors import TensorSpec

HEAD = '''"""{title}, as a class whose weights are declared data: they come beside the restore, and are not in the image.

Written by `rekindle convert`; edit it as you like. `rekindle deploy` serves it.
"""

from pathlib import Path

import rekindle
from rekindle.inference.{module} import {kind}

HERE = Path(__file__).resolve().parent
WEIGHTS = rekindle.Data({url}, dtype="uint8", shape={size})
{constants}
app = rekindle.App({name})


# One function has nobody to share a GPU context with; in one of its own, instances sleep when they are idle.
'''

BATCHED = '''@app.cls(data={{"weights": WEIGHTS}}, share=False)
class Model:
    @rekindle.enter()
    def load(self):
        self.model = Exported(HERE, self.weights, INPUTS, OUTPUTS{place})
        self.model.rehearse()

    @rekindle.batched(max_batch_size={batch}, wait_ms=2)
    def infer(self, {parameters}):
        """Lists of inputs, without the batch dimension; a tuple of outputs for each."""
        return self.model.batch({parameters})

    @rekindle.asgi_app()
    def serve(self):
        return rekindle.infer_app(self.infer, inputs=INPUTS, outputs=OUTPUTS, name={name})
'''

WHOLE = '''@app.cls(data={{"weights": WEIGHTS}}, share=False)
class Model:
    @rekindle.enter()
    def load(self):
        self.model = Exported(HERE, self.weights, INPUTS, OUTPUTS{place})
        self.model.rehearse()

    @rekindle.method()
    def infer(self, {parameters}):
        """The outputs, a tuple."""
        return self.model({parameters})

    @rekindle.asgi_app()
    def serve(self):
        return rekindle.infer_app(self.infer, inputs=INPUTS, outputs=OUTPUTS, name={name})
'''

LANGUAGE = """@app.cls(data={{"weights": WEIGHTS}}, share=False, concurrency=32)
class Model:
    @rekindle.enter()
    def load(self):
        # So many texts are computed together; others of the instance wait.
        self.engine = Language(HERE, self.weights, slots=8{place})
        self.engine.rehearse()

    @rekindle.asgi_app()
    def serve(self):
        return rekindle.openai_app(self.engine, name={name})
"""


def source(made: Made, name: str, title: str, url: str, size: int, device: str) -> str:
    place = "" if device == "cuda" else f", device={quoted(device)}"
    if made.is_language:
        head = HEAD.format(title=plain(title), module="language", kind="Language", url=quoted(url), size=size, constants="", name=quoted(name))
        return head + LANGUAGE.format(place=place, name=quoted(name))
    constants = f"INPUTS = {specs(made.inputs)}\nOUTPUTS = {specs(made.outputs)}\n"
    head = HEAD.format(title=plain(title), module="exported", kind="Exported", url=quoted(url), size=size, constants=constants, name=quoted(name))
    body = BATCHED if made.batch else WHOLE
    return head + body.format(place=place, batch=made.batch, parameters=", ".join(parameters(made.inputs)), name=quoted(name))


def plain(title: str) -> str:
    """What can stand in a text of three quotes."""
    return title.replace("\\", "/").replace('"', "'")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def specs(found: Mapping[str, TensorSpec]) -> str:
    rows = [f"    {quoted(name)}: rekindle.TensorSpec({quoted(spec.dtype)}, {spec.shape!r}),\n" for name, spec in found.items()]
    return "{\n" + "".join(rows) + "}"


def parameters(inputs: Mapping[str, TensorSpec]) -> list[str]:
    """Names that Python has for the inputs, each once."""
    found: list[str] = []
    for number, name in enumerate(inputs):
        word = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not word.isidentifier() or keyword.iskeyword(word) or word in (*found, "self"):
            word = f"input_{number}"
        found.append(word)
    return found
