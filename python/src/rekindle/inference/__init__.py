"""Models behind protocols that others speak: the Open Inference Protocol, and OpenAI's for language models.

request ─▶ asgi ─▶ v2 ─▶ messages, tensors ─▶ a method of the class, alone or batched
               └─▶ chat, completions ─▶ scheduler ─▶ the engine, all sequences at once
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rekindle.inference.engine import ByteTokenizer, Engine, Tokenizer
from rekindle.inference.tensors import TensorSpec
from rekindle.serving.asgi import Application

__all__ = ["ByteTokenizer", "Engine", "TensorSpec", "Tokenizer", "infer_app", "openai_app"]


def infer_app(
    method: Callable[..., Any], *, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], name: str | None = None
) -> Application:
    """A method of the class by the Open Inference Protocol, below `/v2`. The model's name is the class's unless `name` says another.

    The method is marked by @rekindle.method() or @rekindle.batched(...). It has the inputs' arrays in this order, and returns those of
    the outputs: in their order, by their names, or the only one. A batched one has lists of them, without the batch dimension.
    """
    from rekindle.inference.v2 import Inference

    return Inference.of(method, name, inputs, outputs)


def openai_app(engine: Engine, *, name: str) -> Application:
    """A language model by OpenAI's protocol, below `/v1`. All requests that an instance has are computed together."""
    from rekindle.inference.openai import LanguageModel

    return LanguageModel(engine, name)
