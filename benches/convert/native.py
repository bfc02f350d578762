"""What the models answer in one native program: `native.py models|answers WORK cuda|cpu SIZE`.

`models` writes a picture classifier of torchvision's as cnn.pt2, and a language model of transformers' as a directory gpt2, both with
random weights. `answers` writes what they say, from their own sources, to cnn.npz and gpt2.json.
"""

import json
import sys
from pathlib import Path

import numpy
import torch

PROMPTS = ["the quick brown fox", "a", "once upon a time there was a much longer beginning"]
TOKENS, VOCABULARY = 24, 257


def cnn(size):
    import torchvision

    torch.manual_seed(1)
    return (torchvision.models.resnet50 if size == "whole" else torchvision.models.resnet18)(weights=None).eval()


def side(size):
    return 224 if size == "whole" else 64


def gpt2(size):
    import transformers

    torch.manual_seed(2)
    shape = {} if size == "whole" else dict(n_layer=2, n_embd=64, n_head=4, vocab_size=300)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).eval()


def pictures(size):
    return {count: numpy.random.default_rng(count).standard_normal((count, 3, side(size), side(size)), "float32") for count in (1, 4)}


def write_models(work, size):
    example = torch.randn(2, 3, side(size), side(size))
    batch = torch.export.Dim("batch", min=1, max=32)
    torch.export.save(torch.export.export(cnn(size), (example,), dynamic_shapes=({0: batch},)), work / "cnn.pt2")
    gpt2(size).save_pretrained(work / "gpt2")


def write_answers(work, device, size):
    model = cnn(size).to(device)
    with torch.inference_mode():
        found = {str(count): model(torch.from_numpy(one).to(device)).cpu().numpy() for count, one in pictures(size).items()}
    numpy.savez(work / "cnn.npz", **found)
    model = gpt2(size).to(device)
    texts = {}
    for prompt in PROMPTS:
        tokens, margins = list(prompt.encode()), []
        while len(tokens) < len(prompt) + TOKENS:
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([tokens], device=device)).logits[0, -1, :VOCABULARY].float().cpu().numpy()
            first, second = numpy.sort(logits)[:-3:-1]
            margins.append(float(first - second))
            tokens.append(int(logits.argmax()))
        texts[prompt] = {"tokens": tokens[len(prompt) :], "least_margin": min(margins)}
    (work / "gpt2.json").write_text(json.dumps(texts))


if __name__ == "__main__":
    what, work, device, size = sys.argv[1:]
    write_models(Path(work), size) if what == "models" else write_answers(Path(work), device, size)
