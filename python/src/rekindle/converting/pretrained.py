"""Directories as Hugging Face has them: config.json, weights as safetensors, and a tokenizer's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rekindle.converting import exported
from rekindle.converting.made import ConvertError, Made
from rekindle.inference import slots
from rekindle.inference.engine import ByteTokenizer
from rekindle.inference.language import GENERATION, TOKENIZERS, tokenizer_of, without_weights

CONFIG = "config.json"
# What a tokenizer and a language model need of the directory.
KEPT = (
    *(CONFIG, GENERATION, "added_tokens.json", "chat_template.jinja", "merges.txt", "special_tokens_map.json"),
    *("tokenizer_config.json", *TOKENIZERS),
)
# Sizes of the text that is traced.
BATCH, TOKENS = 2, 8


def from_directory(directory: Path, device: str) -> Made:
    config_file = directory / CONFIG
    if not config_file.is_file() or not any(directory.glob("*.safetensors")):
        raise ConvertError(f"{directory} lacks {CONFIG} or weights as *.safetensors; save the model there by `save_pretrained`")
    try:
        import transformers
    except ImportError as error:
        raise ConvertError(f"{directory} needs {error.name}, which is not installed; install it: python3 -m pip install transformers") from error
    try:
        document = json.loads(config_file.read_text())
        config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:
        raise ConvertError(f"{config_file} is no configuration that transformers knows: {exported.said(error)}") from error
    if document.get("quantization_config"):
        raise ConvertError(f"{directory} has quantized weights, whose kernels need more than tensors; save it without quantization")
    architecture, *_ = document.get("architectures") or [None]
    kind = getattr(transformers, architecture or "", None)
    if kind is None:
        raise ConvertError(f"{config_file} names the architecture {architecture!r}, which transformers {transformers.__version__} does not have")
    try:
        model = kind.from_pretrained(directory, local_files_only=True, dtype="auto").eval()
    except Exception as error:
        raise ConvertError(f"transformers cannot load {directory}: {exported.said(error)}") from error
    if is_language(kind, config, transformers):
        return language(directory, model, config)
    return other(directory, model, config, device)


def is_language(kind: Any, config: Any, transformers: Any) -> bool:
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    found = known.get(config.model_type)
    return kind.__name__ in (found if isinstance(found, list | tuple) else (found,))


def language(directory: Path, model: Any, config: Any) -> Made:
    if getattr(model, "_is_stateful", False) or config.is_encoder_decoder:
        raise ConvertError(f"{type(model).__name__} keeps more of a text than keys and values, which cannot be batched here; write a class by hand")
    tensors = slots.tensors(model)
    wanted = slots.tensors(without_weights(config))
    unlike = [name for name in wanted if name not in tensors or tensors[name].shape != wanted[name].shape]
    if unlike or len(wanted) != len(tensors):
        raise ConvertError(f"{type(model).__name__} is another model without its weights ({len(unlike)} tensors); write a class by hand")
    if isinstance(tokenizer_of(directory, config), ByteTokenizer) and config.vocab_size < ByteTokenizer.size:
        raise ConvertError(f"{directory} has no tokenizer, and {config.vocab_size} tokens are too few for bytes; put its tokenizer.json there")
    copies = {name: directory / name for name in KEPT if (directory / name).is_file()}
    return Made(tensors, copies=copies, is_language=True)


def other(directory: Path, model: Any, config: Any, device: str) -> Made:
    """One that has no text to go on with: traced with texts or a picture, as it takes them."""
    import torch

    auto = torch.export.Dim.AUTO
    side, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    if model.main_input_name == "input_ids":
        # Two tensors: one that is there twice would be traced as one.
        options = {name: torch.ones((BATCH, TOKENS), dtype=torch.int64) for name in ("input_ids", "attention_mask")}
        free = {0: auto, 1: auto}
    elif model.main_input_name == "pixel_values" and side:
        height, width = side if isinstance(side, list | tuple) else (side, side)
        options, free = {"pixel_values": torch.zeros((BATCH, channels, height, width))}, {0: auto}
    else:
        sentence = f"{type(model).__name__} takes {model.main_input_name!r}, of a size that its configuration does not say"
        raise ConvertError(f"{sentence}; export it by torch.export.export with such an input, and convert that")
    dtype = next(model.parameters()).dtype
    options = {name: value.to(dtype) if value.is_floating_point() else value for name, value in options.items()}
    return exported.from_module(model, directory.name, (), options, dict.fromkeys(options, free), device)
