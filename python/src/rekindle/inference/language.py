"""A language model of transformers', as `rekindle convert` wrote it: a configuration, `model.json`, and a tokenizer if it has one.

Sequences of different lengths are one batch: the keys and values of the shorter ones are padded on the left.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rekindle.data import Data
from rekindle.inference import slots as places
from rekindle.inference.bound import Bound
from rekindle.inference.engine import ByteTokenizer, Tokenizer, plain_chat
from rekindle.inference.exported import MODEL
from rekindle.inference.placed import from_document, read

if TYPE_CHECKING:
    from rekindle.inference.engine import Logits

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
GENERATION = "generation_config.json"
# Of models that know no limit.
CONTEXT = 2048


class Pretrained:
    """A tokenizer of transformers'."""

    def __init__(self, directory: Path, ends: Collection[int]) -> None:
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
        self.size = len(self.tokenizer)
        own = self.tokenizer.eos_token_id
        self.ends = frozenset(ends) | (frozenset() if own is None else {own})

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if not self.tokenizer.chat_template:
            return self.encode(plain_chat(messages))
        text = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def tokenizer_of(directory: Path, config: Any) -> Tokenizer:
    """The one beside the configuration; for a model without any, bytes."""
    if not any((directory / name).exists() for name in TOKENIZERS):
        return ByteTokenizer()
    return Pretrained(directory, ends_of(directory, config))


def ends_of(directory: Path, config: Any) -> set[int]:
    """What ends a text by the configuration, and by that of generation, which may name more."""
    import transformers

    found = [config.eos_token_id]
    if (directory / GENERATION).exists():
        found.append(transformers.GenerationConfig.from_pretrained(directory, local_files_only=True).eos_token_id)
    return {token for one in found if one is not None for token in (one if isinstance(one, list) else [one])}


def without_weights(config: Any) -> Any:
    """The model, whose tensors have shapes and no memory."""
    import torch
    import transformers

    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config).eval()


class Language(Bound):
    """An engine of `rekindle.openai_app`."""

    def __init__(self, directory: Path, data: Data, slots: int = 8, device: str = "cuda") -> None:
        import transformers

        super().__init__(data, from_document(read(directory / MODEL)["weights"]), device)
        config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
        self.model, self.slots = without_weights(config), slots
        self.context: int = getattr(config, "max_position_embeddings", None) or CONTEXT
        self.tokenizer = tokenizer_of(directory, config)
        self.empty = places.tensors(self.model)
        taken = inspect.signature(self.model.forward).parameters
        self.options = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        # The others know positions from the mask.
        self.takes_positions = "position_ids" in taken or any(one.kind is one.VAR_KEYWORD for one in taken.values())
        # Slots in the order of the batch, how many tokens each has, and keys and values of all.
        self.rows: list[int] = []
        self.lengths: list[int] = []
        self.cache: Any = None

    def bind(self, tensors: dict[str, Any]) -> None:
        places.put(self.model, tensors)

    def forget(self) -> None:
        places.put(self.model, self.empty)
        self.array = None

    def try_out(self) -> None:
        self.prompt(0, [1, 2, 3])
        self.prompt(1, [1])
        self.step({0: 1, 1: 1})
        self.end(0)
        self.end(1)

    def begin(self, slot: int, tokens: Sequence[int]) -> Logits:
        self.current()
        return self.prompt(slot, tokens)

    def advance(self, tokens: Mapping[int, int]) -> Mapping[int, Logits]:
        self.current()
        return self.step(tokens)

    def prompt(self, slot: int, tokens: Sequence[int]) -> Logits:
        import torch
        from transformers import DynamicCache

        cache = DynamicCache()
        with torch.inference_mode():
            ids = torch.tensor([list(tokens)], device=self.device)
            found = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True, **self.options)
            logits: Logits = found.logits[0, -1].float().cpu().numpy()
            self.join(slot, len(tokens), cache)
        return logits

    def step(self, tokens: Mapping[int, int]) -> Mapping[int, Logits]:
        import torch

        with torch.inference_mode():
            ids = torch.tensor([[tokens[slot]] for slot in self.rows], device=self.device)
            lengths = torch.tensor(self.lengths, device=self.device)[:, None]
            width = max(self.lengths) + 1
            mask = (torch.arange(width, device=self.device)[None, :] >= width - 1 - lengths).long()
            positions = {"position_ids": lengths} if self.takes_positions else {}
            found = self.model(input_ids=ids, attention_mask=mask, past_key_values=self.cache, use_cache=True, **positions)
            logits = found.logits[:, -1].float().cpu().numpy()
        self.lengths = [length + 1 for length in self.lengths]
        return dict(zip(self.rows, logits, strict=True))

    def join(self, slot: int, length: int, cache: Any) -> None:
        """One sequence more in the batch."""
        import torch

        if self.rows:
            width = max(*self.lengths, length)
            for all_layer, layer in zip(self.cache.layers, cache.layers, strict=True):
                for name in ("keys", "values"):
                    both = [padded(getattr(one, name), width) for one in (all_layer, layer)]
                    setattr(all_layer, name, torch.cat(both))
        else:
            self.cache = cache
        self.rows.append(slot)
        self.lengths.append(length)

    def end(self, slot: int) -> None:
        import torch

        if slot not in self.rows:
            return
        at = self.rows.index(slot)
        del self.rows[at], self.lengths[at]
        if not self.rows:
            self.cache = None
            return
        left, width = [row for row in range(len(self.rows) + 1) if row != at], max(self.lengths)
        with torch.inference_mode():
            for layer in self.cache.layers:
                for name in ("keys", "values"):
                    # A copy without what none of them has: the memory of the others is given back.
                    setattr(layer, name, getattr(layer, name)[left, :, -width:])


def padded(tensor: Any, width: int) -> Any:
    """Of a batch, heads, tokens and their numbers: with zeros before the first token."""
    import torch

    return torch.nn.functional.pad(tensor, (0, 0, width - tensor.shape[2], 0))
